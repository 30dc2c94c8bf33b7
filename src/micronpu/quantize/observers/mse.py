"""The range with the least squared rounding error of the values."""

from __future__ import annotations

from typing import Any

import torch

from micronpu.quantize.observers.histogram import SpreadErrorObserver
from micronpu.quantize.observing import Observer, in_order
from micronpu.quantize.thresholds import CANDIDATES


class LeastErrorObserver(SpreadErrorObserver):
    """`SpreadErrorObserver` with the actual rounding error.

    `SpreadErrorObserver` assumes values spread evenly within an LSB. After a ReLU half of them are zero, which is
    always exact; an average of few inputs has few different values. Here each bin is rounded for each range.

        error(low, high) = sum over bins of count * (x - round(x))^2, x being the bin's middle, or zero itself

    Attributes:
        zeros: number of values that were exactly zero.
    """

    def __init__(self, *limits: Any, **more: Any) -> None:
        super().__init__(*limits, **more)
        self.zeros = 0

    def see(self, x: torch.Tensor) -> None:
        self.zeros += int((x == 0).sum())
        super().see(x)

    def searched(self, low: float, high: float, count: torch.Tensor) -> tuple[float, float]:
        width = (high - low) / self.bins
        middle = low + width * (torch.arange(self.bins, dtype=torch.float64) + 0.5)
        # Search one end at a time from the best coarse range, since all pairs of ends would take seconds per network.
        first, last = super().searched(low, high, count)
        count = count.clone()
        if low <= 0.0 <= high:
            home = min(int(-low / width), self.bins - 1)
            count[home] = (count[home] - self.zeros).clamp(min=0.0)
        parts = 1.0 - torch.arange(CANDIDATES, dtype=torch.float64) / CANDIDATES
        for _ in range(2):
            lows = (min(low, 0.0) * parts) if low < 0 else torch.zeros(1, dtype=torch.float64)
            first = float(lows[self._errors(count, middle, lows, torch.tensor(last)).argmin()])
            highs = (max(high, 0.0) * parts) if high > 0 else torch.zeros(1, dtype=torch.float64)
            last = float(highs[self._errors(count, middle, torch.tensor(first), highs).argmin()])
        return first, last

    def _errors(self, count: torch.Tensor, values: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
        """Return the squared error of values [bins] that occur ``count`` times, for ranges [ranges]."""
        steps = self.quant_max - self.quant_min
        low, high = torch.broadcast_tensors(low.double().clamp(max=0.0), high.double().clamp(min=0.0))
        if self.is_symmetric:
            high = torch.maximum(-low, high)
            low = -high
        step = ((high - low) / steps).clamp(min=1e-30)[:, None]
        zero = torch.round(low[:, None] / step)
        rounded = torch.clamp(torch.round(values / step) - zero, 0, steps) + zero
        return in_order(count * (rounded * step - values) ** 2)


def least_error_ranges(weights: torch.Tensor, most: int) -> torch.Tensor:
    """Return the end of the best symmetric range with 2 * most + 1 values, for each row of [rows, n].

    A single large weight makes the LSB of all others large. Ranges from all to a fifth of the largest weight are
    compared:

        error(range) = sum (w - clip(round(w / step), -most, most) * step)^2, step = range / most
    """
    if not weights.numel():
        return weights.new_zeros(len(weights))
    peak = weights.abs().amax(1)
    best, least = peak.clone(), torch.full_like(peak, torch.inf, dtype=torch.float64)
    for number in range(CANDIDATES):
        limit = peak * (1 - 0.8 * number / CANDIDATES)
        step = (limit / most).clamp(min=1e-30)[:, None]
        rounded = torch.clamp(torch.round(weights / step), -most, most) * step
        error = in_order((rounded - weights).square())
        better = error < least
        best, least = torch.where(better, limit, best), torch.where(better, error, least)
    return best


OBSERVER = Observer("mse", LeastErrorObserver, for_weights=least_error_ranges)
