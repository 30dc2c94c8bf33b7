"""The average of the extremes per batch, weighted towards later batches."""

from __future__ import annotations

from typing import ClassVar

import torch

from micronpu.quantize.observing import Observer, RangeObserver


class MovingAverageObserver(RangeObserver):
    """range = range + (range of the batch - range) * `SHARE`; the first batch sets it."""

    SHARE: ClassVar[float] = 0.01
    averages: ClassVar[bool] = True
    widens: ClassVar[bool] = False

    def see(self, x: torch.Tensor) -> None:
        low, high = torch.aminmax(x.to(self.min_val.dtype))
        if not self.is_empty:
            low, high = self.averaged(low, high)
        self.min_val.copy_(low)
        self.max_val.copy_(high)

    def averaged(self, low: torch.Tensor, high: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the range with another batch in it."""
        return self.min_val + self.SHARE * (low - self.min_val), self.max_val + self.SHARE * (high - self.max_val)


OBSERVER = Observer("moving_average", MovingAverageObserver)
