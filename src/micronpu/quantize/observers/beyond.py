"""Range of values that become large if their operand is small, as 1 / x: other data may have smaller operands."""

from __future__ import annotations

from typing import ClassVar

import torch

from micronpu.quantize.observing import Observer, RangeObserver

_REACH = 4.0
"""Ratio of the range to the largest observed value."""


class BeyondObserver(RangeObserver):
    """Four times the range of calibration, for which int16 has enough precision."""

    widens: ClassVar[bool] = False

    def found(self) -> tuple[torch.Tensor, torch.Tensor]:
        return _REACH * self.min_val, _REACH * self.max_val


OBSERVER = Observer("beyond", BeyondObserver, for_users=False)
