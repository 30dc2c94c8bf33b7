"""The grid of the weights that a softmax gives to long rows, of which few are near to one."""

from __future__ import annotations

from typing import ClassVar

import torch

from micronpu.quantize.observing import Observer, RangeObserver

_MOST_SHARE = 0.25
"""Of which a grid of its own is four times as fine as that of every softmax, or more."""


class SharesObserver(RangeObserver):
    """Twice as far as calibration has seen, since a softmax may always give more to one value.

    Where that would save less than two bits: steps of 1/256, as every softmax of int8 has.
    """

    of_extremes: ClassVar[bool] = False
    widens: ClassVar[bool] = False

    def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        highest = 1.0 if self.is_empty else 2.0 * float(self.max_val)
        scale = highest / 255 if 0.0 < highest <= _MOST_SHARE else 1 / 256
        return torch.tensor([scale]), torch.tensor([-128])


OBSERVER = Observer("shares", SharesObserver, for_users=False)
