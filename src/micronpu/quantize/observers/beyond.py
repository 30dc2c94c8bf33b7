"""The grid of what becomes large where its operand is small, as 1 / x: other data may have a smaller one."""

from __future__ import annotations

from typing import ClassVar

import torch

from micronpu.quantize.observing import Observer, RangeObserver

_REACH = 4.0
"""How many times as far as anything that was seen."""


class BeyondObserver(RangeObserver):
    """Four times as far as calibration has seen, for which int16 has the steps."""

    widens: ClassVar[bool] = False

    def found(self) -> tuple[torch.Tensor, torch.Tensor]:
        return _REACH * self.min_val, _REACH * self.max_val


OBSERVER = Observer("beyond", BeyondObserver, for_users=False)
