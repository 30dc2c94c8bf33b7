"""The range that excludes the same small share of the values at either end."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from micronpu.quantize.observing import HistogramObserver, Observer


class PercentileObserver(HistogramObserver):
    """Range without a share of the values at either end.

    Args:
        percentile: of the values that are in the range at either end, such as 99.99.
    """

    widens: ClassVar[bool] = False

    def __init__(self, *limits: Any, percentile: float = 99.99, **more: Any) -> None:
        super().__init__(*limits, **more)
        self.percentile = percentile

    def searched(self, low: float, high: float, count: torch.Tensor) -> tuple[float, float]:
        width = (high - low) / self.bins
        below = torch.cumsum(count, 0)
        outside = (1 - self.percentile / 100) * below[-1]
        # The bins in which the share is reached belong to the range.
        first = int(torch.searchsorted(below, outside, right=True))
        last = int(torch.searchsorted(below, below[-1] - outside)) + 1
        return min(low + width * first, max(high, 0.0)), max(low + width * min(last, self.bins), min(low, 0.0))


OBSERVER = Observer("percentile", PercentileObserver, options=("percentile",))
