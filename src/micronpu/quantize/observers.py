"""Observers of calibration data, where torch's own do not serve.

What is special about each is a class beside torch's observer; `micronpu.quantize.pt2e` puts it beside torchao's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.ao.quantization.observer import HistogramObserver, MinMaxObserver, PerChannelMinMaxObserver

# Candidates for each end of a range; the least error is so flat that more of them change nothing.
_CANDIDATES = 64
_MOST_SHARE = 0.25
"""Of which a grid of its own is four times as fine as that of every softmax, or more."""


def is_observer(module: nn.Module) -> bool:
    """Whether a module observes values, and changes none: of torch or of torchao."""
    return hasattr(module, "calculate_qparams") and not hasattr(module, "fake_quant_enabled")


def is_fixed(observer: nn.Module) -> bool:
    """Whether an observer, of torch or of torchao, has a grid that is dictated."""
    return type(observer).__name__ == "FixedQParamsObserver"


class RangeSearch:
    """From a histogram of a tensor's values the range with the least squared error.

    Torch looks for the range in steps, each a pass over all bins; a tensor whose values crowd near zero takes
    hundreds of them, and a network of such tensors most of its compile time. Here all ranges are compared at once: the
    values outside of a range [low, high] are clipped to it, and all are rounded to the grid that it is divided into.

        error(low, high) = sum (x - low)^2 [x < low] + sum (x - high)^2 [x > high] + n step^2 / 12
    """

    bins: int
    histogram: torch.Tensor
    min_val: torch.Tensor
    max_val: torch.Tensor
    qscheme: torch.qscheme
    quant_min: int
    quant_max: int
    chosen: tuple[torch.Tensor, torch.Tensor] | None = None
    """The two ends, where something else than the histogram has chosen them."""

    def _non_linear_param_search(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The two ends of the range, scalars of the histogram's type."""
        return self._searched() if self.chosen is None else self.chosen

    def _searched(self) -> tuple[torch.Tensor, torch.Tensor]:
        low, high = float(self.min_val), float(self.max_val)
        width = (high - low) / self.bins
        if width == 0.0:
            return self.min_val, self.max_val
        count = self.histogram.double().cpu()
        middle = low + width * (torch.arange(self.bins, dtype=torch.float64) + 0.5)
        # Number, sum and sum of squares of the values before each bin, and of all.
        moments = [torch.nn.functional.pad(torch.cumsum(count * middle**i, 0), (1, 0)) for i in range(3)]

        # Both ends move towards zero, which every range holds; an end that is there already stays.
        zero = min(max(round(-low / width), 0), self.bins)
        first, last = _bins_towards(zero, start=0), _bins_towards(zero, start=self.bins)
        lows, highs = low + width * first.double(), low + width * last.double()
        clipped_low = _squares(lows, [m[first] for m in moments])
        clipped_high = _squares(highs, [m[-1] - m[last] for m in moments])
        below, above = (-lows).clamp(min=0.0)[:, None], highs.clamp(min=0.0)[None, :]
        symmetric = self.qscheme == torch.per_tensor_symmetric
        span = 2 * torch.maximum(below, above) if symmetric else below + above
        step = span / (self.quant_max - self.quant_min)
        error = clipped_low[:, None] + clipped_high[None, :] + moments[0][-1] * step**2 / 12
        best = divmod(int(error.argmin()), len(highs))
        return lows[best[0]].to(self.min_val), highs[best[1]].to(self.max_val)


def _bins_towards(zero: int, start: int) -> torch.Tensor:
    """Bin boundaries from ``start`` towards ``zero``, which is not among them unless it is where they start."""
    if start == zero:
        return torch.tensor([start])
    bins: torch.Tensor = torch.linspace(start, zero, _CANDIDATES + 1, dtype=torch.float64)[:-1].round().long().unique()
    return bins


def _squares(bound: torch.Tensor, moments: list[torch.Tensor]) -> torch.Tensor:
    """Sum of (x - bound)^2 over values given by their number, sum and sum of squares."""
    number, total, squares = moments
    return (squares - 2 * bound * total + bound**2 * number).clamp(min=0.0)


class LeastErrorSearch(RangeSearch):
    """As `RangeSearch`, with the error that rounding really makes.

    `RangeSearch` takes the values to be spread evenly over a step. After a ReLU half of them are zero, which every
    grid holds exactly; an average of few inputs has few different values. Here each bin is rounded to each grid.

        error(low, high) = sum over bins of count * (x - round(x))^2, x being the bin's middle, or zero itself
    """

    zeros: int = 0
    """How many of the values were exactly zero."""

    def forward(self, x_orig: torch.Tensor) -> torch.Tensor:
        self.zeros += int((x_orig == 0).sum())
        result: torch.Tensor = super().forward(x_orig)  # type: ignore[misc]
        return result

    def _searched(self) -> tuple[torch.Tensor, torch.Tensor]:
        low, high = float(self.min_val), float(self.max_val)
        width = (high - low) / self.bins
        if width == 0.0:
            return self.min_val, self.max_val
        count = self.histogram.double().cpu().clone()
        middle = low + width * (torch.arange(self.bins, dtype=torch.float64) + 0.5)
        if low <= 0.0 <= high:
            home = min(int(-low / width), self.bins - 1)
            count[home] = (count[home] - self.zeros).clamp(min=0.0)
        symmetric = self.qscheme == torch.per_tensor_symmetric
        parts = 1.0 - torch.arange(_CANDIDATES, dtype=torch.float64) / _CANDIDATES
        # One end at a time from the best of the coarse search, since all pairs of ends would take seconds per network.
        first, last = (float(v) for v in super()._searched())
        steps = self.quant_max - self.quant_min
        for _ in range(2):
            lows = (min(low, 0.0) * parts) if low < 0 else torch.zeros(1, dtype=torch.float64)
            first = float(lows[_errors(count, middle, lows, torch.tensor(last), steps, symmetric).argmin()])
            highs = (max(high, 0.0) * parts) if high > 0 else torch.zeros(1, dtype=torch.float64)
            last = float(highs[_errors(count, middle, torch.tensor(first), highs, steps, symmetric).argmin()])
        return torch.tensor(first).to(self.min_val), torch.tensor(last).to(self.max_val)


def _errors(
    count: torch.Tensor, values: torch.Tensor, low: torch.Tensor, high: torch.Tensor, steps: int, symmetric: bool
) -> torch.Tensor:
    """Squared error of values [bins] that occur ``count`` times on the grids of some ranges [ranges]."""
    low, high = torch.broadcast_tensors(low.double().clamp(max=0.0), high.double().clamp(min=0.0))
    if symmetric:
        high = torch.maximum(-low, high)
        low = -high
    step = ((high - low) / steps).clamp(min=1e-30)[:, None]
    zero = torch.round(low[:, None] / step)
    rounded = torch.clamp(torch.round(values / step) - zero, 0, steps) + zero
    return (count * (rounded * step - values) ** 2).sum(1)


class PercentileSearch(RangeSearch):
    """The range that leaves the same small share of the values outside at either end, whatever that costs.

    Args:
        percentile: of the values that are in the range at either end, such as 99.99.
    """

    def __init__(self, *arguments: Any, percentile: float = 99.99, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.percentile = percentile

    def _searched(self) -> tuple[torch.Tensor, torch.Tensor]:
        low, high = float(self.min_val), float(self.max_val)
        width = (high - low) / self.bins
        if width == 0.0:
            return self.min_val, self.max_val
        below = torch.cumsum(self.histogram.double().cpu(), 0)
        outside = (1 - self.percentile / 100) * below[-1]
        # The bins in which the share is passed belong to the range.
        first = int(torch.searchsorted(below, outside, right=True))
        last = int(torch.searchsorted(below, below[-1] - outside)) + 1
        ends = min(low + width * first, max(high, 0.0)), max(low + width * min(last, self.bins), min(low, 0.0))
        return torch.tensor(ends[0]).to(self.min_val), torch.tensor(ends[1]).to(self.max_val)


class WeightSearch:
    """The symmetric range of a weight tensor with the least squared error.

    A single large weight makes the steps of all others large. Ranges from all to a fifth of the largest weight are
    compared:

        error(range) = sum (w - clip(round(w / step), -n, n) * step)^2, step = range / n, n = quant_max
    """

    quant_max: int
    _seen: tuple[int, int] | None = None

    def forward(self, x_orig: torch.Tensor) -> torch.Tensor:
        if self._seen == (seen := _state(x_orig)):
            return x_orig
        self._seen = seen
        weights = x_orig.detach().reshape(1, -1)
        best = least_error_ranges(weights, self.quant_max)
        self.min_val, self.max_val = -best[0], best[0]
        return x_orig


class ChannelSearch:
    """As `WeightSearch`, with a range for each channel."""

    quant_max: int
    ch_axis: int

    _seen: tuple[int, int] | None = None

    def forward(self, x_orig: torch.Tensor) -> torch.Tensor:
        if self._seen == (seen := _state(x_orig)):
            return x_orig
        self._seen = seen
        weights = x_orig.detach().transpose(0, self.ch_axis).reshape(x_orig.shape[self.ch_axis], -1)
        best = least_error_ranges(weights, self.quant_max)
        self.min_val, self.max_val = -best, best
        return x_orig


def _state(x: torch.Tensor) -> tuple[int, int]:
    """Another one where the values of a parameter have changed: calibration shows the same weights with every row."""
    return x.data_ptr(), x._version


def least_error_ranges(weights: torch.Tensor, most: int) -> torch.Tensor:
    """For each row of [rows, weights] the largest value of the best grid with 2 * most + 1 steps."""
    peak = weights.abs().amax(1) if weights.numel() else weights.new_zeros(len(weights))
    best, least = peak.clone(), torch.full_like(peak, torch.inf)
    for number in range(_CANDIDATES):
        limit = peak * (1 - 0.8 * number / _CANDIDATES)
        step = (limit / most).clamp(min=1e-30)[:, None]
        rounded = torch.clamp(torch.round(weights / step), -most, most) * step
        error = (rounded - weights).square().sum(1)
        better = error < least
        best, least = torch.where(better, limit, best), torch.where(better, error, least)
    return best


class SharesSearch:
    """The grid of the weights that a softmax gives to long rows, of which few are near to one.

    Twice as far as calibration has seen, since a softmax may always give more to one value; where that would save less
    than two bits, steps of 1/256, as every softmax of int8 has.
    """

    max_val: torch.Tensor

    def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        highest = 2.0 * float(self.max_val) if self.max_val.numel() else 1.0
        scale = highest / 255 if 0.0 < highest <= _MOST_SHARE else 1 / 256
        return torch.tensor([scale]), torch.tensor([-128])


class SharesObserver(SharesSearch, MinMaxObserver):  # type: ignore[misc]
    """The largest value with `SharesSearch`."""


class RangeObserver(RangeSearch, HistogramObserver):
    """The histogram with `RangeSearch`."""


class LeastErrorObserver(LeastErrorSearch, HistogramObserver):
    """The histogram with `LeastErrorSearch`."""


class PercentileObserver(PercentileSearch, HistogramObserver):
    """The histogram with `PercentileSearch`."""


class LeastErrorWeights(WeightSearch, MinMaxObserver):
    """One range with `WeightSearch`."""


class LeastErrorWeightsPerChannel(ChannelSearch, PerChannelMinMaxObserver):
    """A range for each channel with `ChannelSearch`."""
