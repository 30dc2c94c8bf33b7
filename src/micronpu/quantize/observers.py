"""Observers of tensor ranges, with their names in the options.

Post-training quantization of this package and torchao's `prepare_pt2e` make them by `observer_for`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from micronpu.base.arrays import Array
from micronpu.quantize.observing import FixedObserver, HistogramObserver, RangeObserver, WeightObserver, in_order
from micronpu.quantize.specs import FixedQParamsQuantizationSpec, QuantizationSpec
from micronpu.quantize.thresholds import CANDIDATES, FINER_RESULT, LATEST, MOST_SHARE, PERCENTILE, SMALLEST_RANGE


class MinMaxObserver(RangeObserver):
    """The extremes of the values."""


def largest(weights: torch.Tensor, most: int) -> torch.Tensor:
    """Return the largest magnitude of each row of [rows, n]."""
    return weights.abs().amax(1) if weights.numel() else weights.new_zeros(len(weights))


class MovingAverageObserver(RangeObserver):
    """The average of the extremes per batch, weighted towards later batches.

    range = range + (range of the batch - range) * `LATEST`; the first batch sets it.
    """

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
        return self.min_val + LATEST * (low - self.min_val), self.max_val + LATEST * (high - self.max_val)


class SpreadErrorObserver(HistogramObserver):
    """The range with the least squared error, assuming values spread evenly within an LSB.

    It compares all ranges at once: values outside of [low, high] are clipped, and all are rounded.

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


def _bins_towards(zero: int, start: int) -> Array:
    """Return bin boundaries from ``start`` towards ``zero``, which is excluded unless both are equal."""
    if start == zero:
        return np.array([start])
    bins: Array = np.unique(np.rint(np.linspace(start, zero, CANDIDATES, endpoint=False)).astype(np.int64))
    return bins


def _squares(bound: Array, number: Array, total: Array, squares: Array) -> Array:
    """Return the sum of (x - bound)^2 over values given by their number, sum and sum of squares."""
    found: Array = np.maximum(squares - 2 * bound * total + bound**2 * number, 0.0)
    return found


class LeastErrorObserver(SpreadErrorObserver):
    """`SpreadErrorObserver` with the actual rounding error.

    `SpreadErrorObserver` assumes values spread evenly within an LSB. After a ReLU half of them are zero, which is
    always exact; an average of few inputs has few different values. Here each bin is rounded for each range.

        error(low, high) = sum over bins of count * (x - round(x))^2, x being the bin's middle, or zero itself

    Attributes:
        zeros: number of values that were exactly zero.
    """

    counted = (*HistogramObserver.counted, "zeros")

    def __init__(self, *limits: object, **more: object) -> None:
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
        limit = peak * (1 - (1 - SMALLEST_RANGE) * number / CANDIDATES)
        step = (limit / most).clamp(min=1e-30)[:, None]
        rounded = torch.clamp(torch.round(weights / step), -most, most) * step
        error = in_order((rounded - weights).square())
        better = error < least
        best, least = torch.where(better, limit, best), torch.where(better, error, least)
    return best


class PercentileObserver(HistogramObserver):
    """Range without a share of the values at either end.

    Args:
        percentile: of the values that are in the range at either end, such as 99.99.
    """

    widens: ClassVar[bool] = False

    def __init__(self, *limits: object, percentile: float = PERCENTILE, **more: object) -> None:
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


class BeyondObserver(RangeObserver):
    """Twice the range of calibration: one of 16 bits, where clipping costs more than rounding."""

    widens: ClassVar[bool] = False
    part: float = 2.0


class FinerObserver(RangeObserver):
    """Chooses between the range of the values and the operand's qparams, whose observer sees the results, too.

    Args:
        times: required ratio of the operand's scale to the own scale.
        room: range of separate qparams as a multiple of the observed range: averages of other data may exceed it, and
            clipping costs more than some precision.
        operand_qparams: scale and zero point that the operand would have if its own were not only for whole numbers.
    """

    operands: tuple[Any, ...]

    def __init__(
        self,
        *arguments: Any,
        times: float,
        room: float,
        operand_qparams: tuple[float, int] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self.times, self.room = times, room
        self.operand_qparams = operand_qparams
        self.operands = ()  # in a tuple they are no submodules

    def observe_operand(self, observer: object) -> None:
        """Add an observer of the operand; several results that share qparams have several."""
        if observer is not None and observer is not self and observer not in self.operands:
            self.operands = (*self.operands, observer)

    def learners(self) -> tuple[RangeObserver, ...]:
        return (*self.operands, self) if len(self.operands) == 1 else (self,)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(self.operands) == 1:
            self.operands[0](x)
        return super().forward(x)

    def _ends(self) -> tuple[torch.Tensor, torch.Tensor]:
        low, high = super()._ends()
        return low * self.room, high * self.room

    def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        own = super().calculate_qparams()
        if self.operand_qparams is not None:
            shared = torch.tensor([self.operand_qparams[0]]), torch.tensor([self.operand_qparams[1]])
        elif len(self.operands) == 1:
            shared = self.operands[0].calculate_qparams()
        else:
            return own
        seen = float(self.min_val) < 0.0 or float(self.max_val) > 0.0
        # Observed values show how small the results are; separate qparams also need a margin.
        low, high = self.found()
        steps = float(high.clamp(min=0.0) - low.clamp(max=0.0)) / (self.quant_max - self.quant_min)
        is_worth = self.times * steps < float(shared[0]) and FINER_RESULT * float(own[0]) <= float(shared[0])
        return own if seen and is_worth else shared


class SharesObserver(RangeObserver):
    """Scale of a softmax's weights over long rows, few of which are near one.

    Twice the range of calibration, since a softmax may always give more weight to one value.

    If that would save less than two bits: 1/256, the scale of every int8 softmax.
    """

    of_extremes: ClassVar[bool] = False
    widens: ClassVar[bool] = False

    def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        highest = 1.0 if self.is_empty else 2.0 * float(self.max_val)
        scale = highest / 255 if 0.0 < highest <= MOST_SHARE else 1 / 256
        return torch.tensor([scale]), torch.tensor([-128])


# ---------------------------------------------------------------- by their names


@dataclass(frozen=True)
class Observer:
    """A kind of observer."""

    name: str  # its name in the options
    search: type[RangeObserver]  # the module that observes an activation
    # Returns for each row of weights [rows, n] the end of its range [rows], for symmetric qparams with 2 * most + 1
    # values; None for activations only.
    for_weights: Callable[[torch.Tensor, int], torch.Tensor] | None = None
    options: tuple[str, ...] = ()  # fields of `QuantizationConfig` that ``search`` takes
    for_users: bool = True  # True if users can select it; the others are for certain operators

    @property
    def clips(self) -> bool:
        """True if it may exclude values seen in calibration, for a smaller scale."""
        return not self.search.of_extremes


OBSERVERS = {
    observer.name: observer
    for observer in (
        Observer("beyond", BeyondObserver, for_users=False),
        Observer("finer", FinerObserver, for_users=False),
        Observer("histogram", SpreadErrorObserver),
        Observer("minmax", MinMaxObserver, for_weights=largest),
        Observer("moving_average", MovingAverageObserver),
        Observer("mse", LeastErrorObserver, for_weights=least_error_ranges),
        Observer("percentile", PercentileObserver, options=("percentile",)),
        Observer("shares", SharesObserver, for_users=False),
    )
}
"""All observers, by their names."""


def for_activations() -> tuple[str, ...]:
    return tuple(o.name for o in OBSERVERS.values() if o.for_users)


def for_weights() -> tuple[str, ...]:
    return tuple(o.name for o in OBSERVERS.values() if o.for_weights is not None)


def observer_for(spec: QuantizationSpec | FixedQParamsQuantizationSpec) -> RangeObserver | FixedObserver:
    limits = (spec.quant_min, spec.quant_max, spec.qscheme)
    if isinstance(spec, FixedQParamsQuantizationSpec):
        return FixedObserver(spec.dtype, spec.scale, spec.zero_point, *limits)
    known = OBSERVERS[spec.observer]
    if not spec.of_weights:
        return known.search(spec.dtype, *limits, spec.eps, **dict(spec.options))
    assert known.for_weights is not None
    return WeightObserver(spec.dtype, *limits, spec.eps, search=known.for_weights, ch_axis=spec.ch_axis)


def is_observer(module: nn.Module) -> bool:
    """Return True if a module observes values without changing them: this package's or torchao's."""
    return hasattr(module, "calculate_qparams") and not hasattr(module, "fake_quant_enabled")


def is_fixed(observer: nn.Module) -> bool:
    """Return True if an observer, this package's or torchao's, has fixed qparams."""
    return isinstance(observer, FixedObserver) or type(observer).__name__ == "FixedQParamsObserver"


def is_average(observer: nn.Module) -> bool:
    """Return True if the range of an observer, this package's or torchao's, is an average of extremes."""
    return observer.averages if isinstance(observer, RangeObserver) else "MovingAverage" in type(observer).__name__


def is_of_extremes(observer: nn.Module) -> bool:
    """Return True if the range of an observer, this package's or torchao's, consists of (averaged) extremes."""
    return observer.of_extremes if isinstance(observer, RangeObserver) else "MinMax" in type(observer).__name__
