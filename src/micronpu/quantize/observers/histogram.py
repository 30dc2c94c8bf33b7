"""The range with the least squared error, assuming values spread evenly within an LSB."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from micronpu.quantize.observing import HistogramObserver, Observer
from micronpu.quantize.thresholds import CANDIDATES


class SpreadErrorObserver(HistogramObserver):
    """Compares all ranges at once: values outside of [low, high] are clipped, and all are rounded.

    error(low, high) = sum (x - low)^2 [x < low] + sum (x - high)^2 [x > high] + n step^2 / 12

    torch's own histogram searches the range in steps, each a pass over all bins. A tensor with most values near zero
    takes hundreds of them, which dominates compile time.
    """

    def searched(self, low: float, high: float, count: torch.Tensor) -> tuple[float, float]:
        width = (high - low) / self.bins
        middle = low + width * (np.arange(self.bins) + 0.5)
        # Number, sum and sum of squares of the values before each bin, and of all.
        moments = np.zeros((3, self.bins + 1))
        np.cumsum(count.numpy() * np.stack([np.ones_like(middle), middle, middle**2]), 1, out=moments[:, 1:])

        # Both ends move towards zero, which every range contains; an end at zero stays.
        zero = min(max(round(-low / width), 0), self.bins)
        first, last = _bins_towards(zero, start=0), _bins_towards(zero, start=self.bins)
        lows, highs = low + width * first, low + width * last
        clipped_low = _squares(lows, *moments[:, first])
        clipped_high = _squares(highs, *(moments[:, -1:] - moments[:, last]))
        below, above = np.maximum(-lows, 0.0)[:, None], np.maximum(highs, 0.0)[None, :]
        span = 2 * np.maximum(below, above) if self.is_symmetric else below + above
        step = span / (self.quant_max - self.quant_min)
        error = clipped_low[:, None] + clipped_high[None, :] + moments[0, -1] * step**2 / 12
        best = divmod(int(error.argmin()), len(highs))
        return float(lows[best[0]]), float(highs[best[1]])


def _bins_towards(zero: int, start: int) -> NDArray[Any]:
    """Return bin boundaries from ``start`` towards ``zero``, which is excluded unless both are equal."""
    if start == zero:
        return np.array([start])
    bins: NDArray[Any] = np.unique(np.rint(np.linspace(start, zero, CANDIDATES, endpoint=False)).astype(np.int64))
    return bins


def _squares(bound: NDArray[Any], number: NDArray[Any], total: NDArray[Any], squares: NDArray[Any]) -> NDArray[Any]:
    """Return the sum of (x - bound)^2 over values given by their number, sum and sum of squares."""
    found: NDArray[Any] = np.maximum(squares - 2 * bound * total + bound**2 * number, 0.0)
    return found


OBSERVER = Observer("histogram", SpreadErrorObserver)
