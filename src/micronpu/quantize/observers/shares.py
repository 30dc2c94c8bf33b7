"""Scale of a softmax's weights over long rows, few of which are near one."""

from __future__ import annotations

from typing import ClassVar

import torch

from micronpu.quantize.observing import Observer, RangeObserver
from micronpu.quantize.thresholds import MOST_SHARE


class SharesObserver(RangeObserver):
    """Twice the range of calibration, since a softmax may always give more weight to one value.

    If that would save less than two bits: 1/256, the scale of every int8 softmax.
    """

    of_extremes: ClassVar[bool] = False
    widens: ClassVar[bool] = False

    def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        highest = 1.0 if self.is_empty else 2.0 * float(self.max_val)
        scale = highest / 255 if 0.0 < highest <= MOST_SHARE else 1 / 256
        return torch.tensor([scale]), torch.tensor([-128])


OBSERVER = Observer("shares", SharesObserver, for_users=False)
