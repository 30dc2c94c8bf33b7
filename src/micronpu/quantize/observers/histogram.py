"""The range with the least squared error, assuming values spread evenly within an LSB."""

from __future__ import annotations

import torch

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
        middle = low + width * (torch.arange(self.bins, dtype=torch.float64) + 0.5)
        # Number, sum and sum of squares of the values before each bin, and of all.
        moments = [torch.nn.functional.pad(torch.cumsum(count * middle**i, 0), (1, 0)) for i in range(3)]

        # Both ends move towards zero, which every range contains; an end at zero stays.
        zero = min(max(round(-low / width), 0), self.bins)
        first, last = _bins_towards(zero, start=0), _bins_towards(zero, start=self.bins)
        lows, highs = low + width * first.double(), low + width * last.double()
        clipped_low = _squares(lows, [m[first] for m in moments])
        clipped_high = _squares(highs, [m[-1] - m[last] for m in moments])
        below, above = (-lows).clamp(min=0.0)[:, None], highs.clamp(min=0.0)[None, :]
        span = 2 * torch.maximum(below, above) if self.is_symmetric else below + above
        step = span / (self.quant_max - self.quant_min)
        error = clipped_low[:, None] + clipped_high[None, :] + moments[0][-1] * step**2 / 12
        best = divmod(int(error.argmin()), len(highs))
        return float(lows[best[0]]), float(highs[best[1]])


def _bins_towards(zero: int, start: int) -> torch.Tensor:
    """Return bin boundaries from ``start`` towards ``zero``, which is excluded unless both are equal."""
    if start == zero:
        return torch.tensor([start])
    bins: torch.Tensor = torch.linspace(start, zero, CANDIDATES + 1, dtype=torch.float64)[:-1].round().long().unique()
    return bins


def _squares(bound: torch.Tensor, moments: list[torch.Tensor]) -> torch.Tensor:
    """Return the sum of (x - bound)^2 over values given by their number, sum and sum of squares."""
    number, total, squares = moments
    return (squares - 2 * bound * total + bound**2 * number).clamp(min=0.0)


OBSERVER = Observer("histogram", SpreadErrorObserver)
