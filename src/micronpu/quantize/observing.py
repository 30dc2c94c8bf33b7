"""Interface of observers: modules that see values in calibration, and choose their qparams.

`micronpu.quantize.observers` lists the observers by their names.

Qparams depend on exact values and on IEEE 754 operations that every machine rounds alike; sums are computed in float64,
in a fixed order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from micronpu.base.arrays import Array
from micronpu.base.callers import warn
from micronpu.base.errors import ModelError
from micronpu.quantize import thresholds as at
from micronpu.upstream.torch import version_of

_SYMMETRIC = (torch.per_tensor_symmetric, torch.per_channel_symmetric)


@dataclass(frozen=True)
class Thresholds:
    """Thresholds of a value's readers, which must be halfway between two quantized values.

    Attributes:
        rows: (first, distance) of an infinite sequence of numbers; the distance of a single number is 0.
    """

    rows: frozenset[tuple[float, float]] = frozenset()

    def __repr__(self) -> str:
        return f"Thresholds({sorted(self.rows)})"

    def __or__(self, other: Thresholds) -> Thresholds:
        return Thresholds(self.rows | other.rows)

    def before(self, factor: float, addend: float) -> Thresholds:
        """Return the thresholds of x for thresholds of factor * x + addend."""
        return Thresholds(
            frozenset(((first - addend) / factor, distance / abs(factor)) for first, distance in self.rows)
        )

    def within(self, low: float, high: float) -> list[float]:
        """Return the thresholds inside of a range, in order; zero is none, as it is exact in all qparams."""
        found = set()
        for first, distance in self.rows:
            if not distance:
                found.add(first)
            elif (high - low) / distance <= at.MOST_THRESHOLDS:
                ends = math.ceil((low - first) / distance), math.floor((high - first) / distance)
                found |= {first + n * distance for n in range(ends[0], ends[1] + 1)}
        return sorted(number for number in found if low < number < high and number)


@dataclass(frozen=True)
class Extremes:
    """Values from which a range follows.

    Attributes:
        calls, values: numbers of observed calls and values.
        farthest: downwards and upwards, the farthest extremes of single calls with the numbers of these calls.
        widens: True if the range has a margin.
        rounding: see `_margin`.
    """

    calls: int
    values: int
    farthest: tuple[tuple[tuple[float, int], ...], ...]
    widens: bool
    rounding: float = 0.0

    def without(self, calls: Collection[int], side: int) -> float:
        """Return the end of the range without some calls, downwards (side 0) or upwards."""
        others = [end for end, call in self.farthest[side] if call not in calls]
        end = max(others, default=self.farthest[side][-1][0])  # at most that, if all of the known ones are left out
        is_wider = self.widens and len(others) > 1
        return end + (_margin(others, self.calls, self.values, self.rounding) if is_wider else 0.0)


class RangeObserver(nn.Module):
    """Learns a range from the values that it is called with, and returns them unchanged.

    Args:
        dtype: dtype of the integers, from ``quant_min`` to ``quant_max``.
        qscheme: torch's scheme: per tensor or per channel, symmetric or affine.
        eps: the smallest scale.

    Attributes:
        min_val, max_val: the observed extremes; infinite, or empty, before the first call.
        of_extremes: True if the qparams follow from the observed extremes, or their average.
        averages: True if they follow from the average.
        widens: True if the range gets a margin after few values.
        counted: names of the numbers that a checkpoint holds besides the buffers, old ones first.
        calls, values: numbers of observed calls and values.
        is_settled: 1 if the ends are given, and replace those that were found.
        is_calibrated: True after calibration: later values are repetitions, and not observed.
        farthest: [2, `EXTREMES`], downwards and upwards: the farthest extremes of single calls, largest first.
        holders: [2, `EXTREMES`], numbers of these calls.
        thresholds: thresholds that must be between two LSBs, for int8.
        singularity: a `micronpu.quantize.solver.neighbours.Singularity`, or None.
        saturation: a `micronpu.quantize.solver.neighbours.Saturation`, or None.
        part: fraction of the found range that the qparams cover; values beyond saturate.
        is_whole: True for whole numbers, all of which int8 must represent.
        repeats: how often it sees a value in a call, which others of its group move.
        exceeded_from: number of values from which the margin also balances clipping and rounding.
        within: limits of the observed values; values beyond count as the limit, unless they are very far.
        lowest, highest: observed extremes, even beyond these limits.
    """

    min_val: torch.Tensor
    max_val: torch.Tensor
    eps: torch.Tensor
    of_extremes: ClassVar[bool] = True
    averages: ClassVar[bool] = False
    widens: ClassVar[bool] = True
    counted: ClassVar[tuple[str, ...]] = ("calls", "values", "lowest", "highest", "is_settled")
    farthest: torch.Tensor
    holders: torch.Tensor
    is_dynamic = False  # torchao asks
    is_calibrated = False
    thresholds: Thresholds = Thresholds()
    part: float = 1.0
    is_whole: bool = False
    repeats: int = 1
    exceeded_from: float = math.inf
    within: tuple[float, float] = (-math.inf, math.inf)
    singularity: Any = None
    saturation: Any = None

    def __init__(
        self, dtype: torch.dtype, quant_min: int, quant_max: int, qscheme: torch.qscheme, eps: float = 2.0**-23
    ) -> None:
        super().__init__()
        self.dtype, self.quant_min, self.quant_max, self.qscheme = dtype, quant_min, quant_max, qscheme
        self.calls = self.values = self.is_settled = 0  # numbers, so that they are cached
        self.lowest = self.highest = 0.0
        self.register_load_state_dict_pre_hook(_make_room)  # type: ignore[no-untyped-call]
        self.register_buffer("eps", torch.tensor([eps]))
        self.register_buffer("min_val", torch.tensor(torch.inf))
        self.register_buffer("max_val", torch.tensor(-torch.inf))
        if self.widens:
            self.register_buffer("farthest", torch.full((2, at.EXTREMES), -torch.inf, dtype=torch.float64))
            self.register_buffer("holders", -torch.ones((2, at.EXTREMES), dtype=torch.float64), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.is_calibrated:
            return x
        seen = x.detach() if self.singularity is None else self.singularity.counting(x.detach())
        if math.isfinite(self.within[1] - self.within[0]) and seen.numel():
            most = torch.finfo(torch.float32).max  # also in float64: the scale is a float32
            low, high = torch.aminmax(seen.clamp(-most, most))
            self.lowest, self.highest = min(self.lowest, float(low)), max(self.highest, float(high))
            seen = seen.clamp(*self.within)
        if seen.numel():
            self.see(seen)
            if self.widens:
                self._note_ends(seen)
        return x

    def learners(self) -> tuple[RangeObserver, ...]:
        """Return the observers that learn from the values that this one is called with."""
        return (self,)

    @property
    def is_done(self) -> bool:
        """True if no observer learns any more from what this one is called with."""
        return all(other.is_calibrated if other is self else other.is_done for other in self.learners())

    def _note_ends(self, x: torch.Tensor) -> None:
        low, high = map(float, torch.aminmax(x))
        if math.isfinite(low) and math.isfinite(high):
            for side, (end, least) in enumerate(zip((-low, high), self.farthest[:, -1].tolist(), strict=True)):
                if end > least and self.calls // self.repeats not in self.holders[side].tolist():
                    known = [*zip(self.farthest[side].tolist(), self.holders[side].tolist(), strict=True)]
                    known = sorted([*known, (end, self.calls // self.repeats)], key=lambda own: -own[0])[: at.EXTREMES]
                    self.farthest[side], self.holders[side] = torch.tensor(known, dtype=torch.float64).T
            self.calls, self.values = self.calls + 1, self.values + x.numel()

    def add_thresholds(self, thresholds: Thresholds) -> None:
        self.thresholds |= thresholds

    def see(self, x: torch.Tensor) -> None:
        """Widen the range for values of any shape, at least one."""
        low, high = torch.aminmax(x.to(self.min_val.dtype))
        self.min_val.copy_(torch.minimum(low, self.min_val))
        self.max_val.copy_(torch.maximum(high, self.max_val))

    @property
    def is_empty(self) -> bool:
        """True if it has seen nothing."""
        return not self.min_val.numel() or bool(torch.isinf(self.min_val).any() or torch.isinf(self.max_val).any())

    def found(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the two ends of the range, after the first call."""
        return self.min_val, self.max_val

    def settle(self, low: torch.Tensor, high: torch.Tensor) -> None:
        self.is_settled = 1
        self.min_val.copy_(low)
        self.max_val.copy_(high)

    def beyond(self) -> tuple[float, float]:
        """Return the margin of a range, downwards and upwards.

        In the tail of a Laplace distribution, the mean excess s over a threshold does not depend on the threshold: the
        largest of k times as many values is expected to be larger by ln(k) times the mean excess.

        Sums of products get as much as clipping costs more than rounding. Of k calls whose extremes exceed the
        threshold, a part of exp(-d / s) reaches d beyond it, and is clipped there by 2 s^2 in the mean square; of N
        values, each is rounded by R^2 / (12 steps^2) in a range R; both cost least where
        exp(-d / s) = N R / (12 k steps^2 s).

        Source: Pickands, Statistical inference using extreme order statistics, Annals of Statistics 3 (1975).
        """
        calls, values = self.calls // self.repeats, self.values // self.repeats
        if not self.widens or calls < at.FEWEST_EXTREMES or self.is_settled:
            return 0.0, 0.0
        less, more = (_margin(row, calls, values, self._rounding()) for row in self.farthest.tolist())
        return less, more

    def _rounding(self) -> float:
        """Return what rounding costs, R / (12 steps^2); 0 if that does not count for the margin."""
        # It does not if the range clips, or if the extremes are multiples of an LSB, as of pixels.
        has_others = self.is_whole or self.part != 1.0 or self.thresholds.rows or self.within != (-math.inf, math.inf)
        if self.values < self.exceeded_from or has_others:
            return 0.0
        low, high = map(float, self.found())
        ends, steps = (-low, high), self.quant_max - self.quant_min
        reach = 2.0 * max(ends) if self.qscheme in _SYMMETRIC else sum(max(end, 0.0) for end in ends)
        known = self.farthest[:, : at.FEWEST_EXTREMES] * (steps / reach if reach > 0.0 else 0.0)  # in LSBs
        clips = any(end < (row[0] - 1.0) * reach / steps for end, row in zip(ends, known.tolist(), strict=True))
        is_exact = float((known - known.round()).abs().max()) <= at.ON_STEP
        return 0.0 if clips or is_exact else reach / (12 * steps**2)

    @property
    def extremes(self) -> Extremes | None:
        """Return the values from which the range follows; None if it follows from others, too, or from few calls."""
        own = (
            self.widens and type(self).calculate_qparams is RangeObserver.calculate_qparams and self.singularity is None
        )
        if (
            not own
            or self.part > 1.0
            or self.calls // self.repeats < at.FEWEST_EXTREMES
            or math.isfinite(self.within[1] - self.within[0])
            or (self.saturation is not None and self.reach() != self.reach(self.saturation))
        ):
            return None
        kept = min(self.calls // self.repeats // 2 + 1, at.EXTREMES)
        rows = zip(self.farthest[:, :kept].tolist(), self.holders[:, :kept].long().tolist(), strict=True)
        farthest = tuple(tuple(zip(*row, strict=True)) for row in rows)
        calls, values = self.calls // self.repeats, self.values // self.repeats
        return Extremes(calls, values, farthest, not self.is_settled, self._rounding())

    def _ends(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the ends of the range, before thresholds and whole numbers are considered."""
        low, high = self.found()
        if low.numel() == 1:
            less, more = self.beyond()
            low, high = low - less, high + more
            reach = self.within[1] - self.within[0]
            if max(-self.lowest, self.highest) > at.FARTHEST_BEYOND * reach:
                low, high = torch.full_like(low, self.lowest), torch.full_like(high, self.highest)
            elif math.isfinite(reach):
                return low, high  # beyond these ends values saturate already, and up to them they count
        return low * self.part, high * self.part

    def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scale and zero point, of shape [1] or [channels]."""
        if self.is_empty:
            warn("An observer has seen no values and returns scale 1, zero point 0. Run the prepared module first.")
            return torch.tensor([1.0]), torch.tensor([0])
        return self._qparams(self.singularity, self.saturation)

    def reach(self, *limits: object) -> tuple[float, float]:
        """Return the ends of the integers, before sums saturate or with further limits; infinite if unknown."""
        if self.is_empty or type(self).calculate_qparams is not RangeObserver.calculate_qparams:
            return -math.inf, math.inf
        scale, zero_point = (float(number) for number in self._qparams(self.singularity, *limits))
        return (self.quant_min - zero_point) * scale, (self.quant_max - zero_point) * scale

    def _qparams(self, *limits: Any) -> tuple[torch.Tensor, torch.Tensor]:
        low, high = self._ends()
        for limit in limits:
            if limit is not None and low.numel() == 1:
                least, most = limit.ends()
                low, high = low.clamp(min=least), high.clamp(max=most)
        ends = self.quant_min, self.quant_max
        symmetric = self.qscheme in _SYMMETRIC
        something = symmetric | (low < 0.0) | (high > 0.0)
        eps = torch.where(something, self.eps, self.eps.clamp(min=at.NOTHING))
        scale, zero_point = qparams_of(low, high, *ends, eps, symmetric=symmetric)
        if self.is_whole and ends[1] - ends[0] < 256:
            return qparams_of(low, high, *ends, _with_whole_numbers(scale), symmetric=symmetric)
        if low.numel() == 1 and ends[1] - ends[0] < 256:
            between = self.thresholds.within(float(low), float(high))
            if between:
                wider = torch.full_like(scale, _between_steps(float(scale), between))
                return qparams_of(low, high, *ends, wider, symmetric=symmetric)
        return scale, zero_point

    def get_extra_state(self) -> torch.Tensor:
        """Return state of a checkpoint besides the buffers, as a tensor: users clone every value of a `state_dict`."""
        return torch.tensor([getattr(self, name) for name in self.counted], dtype=torch.float64)

    def set_extra_state(self, state: torch.Tensor) -> None:
        """Restore the result of `get_extra_state`, which may be an older one with fewer numbers."""
        for name, number in zip(self.counted, state.tolist(), strict=False):
            setattr(self, name, type(getattr(self, name))(number))

    def extra_repr(self) -> str:
        return f"min_val={self.min_val}, max_val={self.max_val}"


def _make_room(observer: nn.Module, state_dict: dict[str, object], prefix: str, *_: object) -> None:
    """Resize unused buffers of per-channel weights to those of a checkpoint."""
    for name, buffer in observer.named_buffers(recurse=False):
        saved = state_dict.get(prefix + name)
        if isinstance(saved, torch.Tensor) and not buffer.numel():
            buffer.resize_(saved.shape)
        elif name == "farthest" and isinstance(saved, torch.Tensor) and saved.shape != buffer.shape:  # fewer, once
            filled = nn.functional.pad(saved, (0, max(buffer.shape[1] - saved.shape[1], 0)), value=-torch.inf)
            state_dict[prefix + name] = filled[:, : buffer.shape[1]]


def qparams_of(
    low: torch.Tensor, high: torch.Tensor, quant_min: int, quant_max: int, eps: torch.Tensor, *, symmetric: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scale and zero point of ranges; the only function that converts ranges to qparams.

    Args:
        low, high: ends, of shape [] or [channels]; a range without zero is widened to it.
        eps: the smallest scale.

    Returns:
        float32 scales and int64 zero points, as for the core's kernels, of shape [1] or [channels].
    """
    low, high = low.reshape(-1).clamp(max=0.0), high.reshape(-1).clamp(min=0.0)
    if symmetric:
        scale = torch.maximum(torch.maximum(-low, high) / ((quant_max - quant_min) / 2), eps)
        return scale, torch.zeros_like(scale, dtype=torch.int64)
    scale = torch.maximum((high - low) / float(quant_max - quant_min), eps)
    zero_point = quant_min - torch.round(low / scale).to(torch.int64)
    return scale, zero_point.clamp(quant_min, quant_max)


def _margin(extremes: Sequence[float], calls: int, values: int, rounding: float) -> float:
    """Return the margin beyond an end of a range, see `RangeObserver.beyond`.

    Args:
        extremes: the farthest ones of single calls, largest first; that of the median call is the threshold.
        calls, values: numbers of calls, and of values in all of them.
        rounding: see `RangeObserver._rounding`.
    """
    extremes = extremes[: max(at.FEWEST_EXTREMES, min(calls // 2 + 1, at.EXTREMES - 1))]
    most, least, count = extremes[0], extremes[-1], len(extremes) - 1
    if most <= 0.0:
        return 0.0  # values of one sign get no margin beyond zero
    excess = sum(extreme - least for extreme in extremes[:-1]) / count
    margin = max(excess * _logarithm(at.ENOUGH_VALUES / values), 0.0)
    if 0.0 < (cost := rounding * values / count) < excess:
        margin = max(margin, least - most + excess * _logarithm(excess / cost))
    largest = at.ENOUGH_VALUES / (at.ENOUGH_VALUES + values) + at.LARGEST_MARGIN
    return min(margin, most * (largest if values >= at.ENOUGH_VALUES else 1.0))  # at most doubles the range


def _logarithm(number: float) -> float:
    """Return the natural logarithm by linear interpolation, so that all machines agree; the error is at most 0.06."""
    mantissa, exponent = math.frexp(number)
    return (2.0 * mantissa - 2.0 + exponent) * 0.6931471805599453


def _with_whole_numbers(scale: torch.Tensor) -> torch.Tensor:
    """Return the next scale of which whole numbers are exact multiples; or, above 1, the next whole number."""
    part, exponent = torch.frexp(scale)  # scale = part * 2 ** exponent, and part from 0.5 to below 1
    power = torch.ldexp(torch.ones_like(scale), exponent - (part == 0.5).to(exponent.dtype))
    return torch.where(scale > 1.0, scale.ceil(), power)


def _between_steps(scale: float, thresholds: list[float]) -> float:
    """Return the scale, not below a given one, with which thresholds are nearest to halfway between two LSBs."""
    # The smallest of equal ones; the given one if no other is nearer.
    sizes = [abs(threshold) for threshold in thresholds]
    tried = [scale * (1.0 + (at.WIDER - 1.0) * n / at.SCALES) for n in range(at.SCALES + 1)]
    for size in sizes:
        last = math.floor(size / scale - 0.5)
        tried += [size / (n + 0.5) for n in range(max(0, last - at.SCALES), last + 1) if size / (n + 0.5) >= scale]
    scales = np.array([s for s in tried if s <= at.WIDER * scale])
    # Fraction of an LSB by which thresholds miss the middle, plus a penalty for larger scales.
    missed = sum((abs(size / scales % 1.0 - 0.5) for size in sizes), np.zeros_like(scales))
    missed += at.WIDER_COST * (scales / scale - 1.0)
    nearest = missed <= missed.min() + at.AS_NEAR
    best = min(zip(missed[nearest], scales[nearest], strict=True), key=lambda pair: (round(float(pair[0]), 9), pair[1]))
    return float(best[1])


class FixedObserver(nn.Module):
    """Returns fixed qparams."""

    is_done = True
    scale: torch.Tensor
    zero_point: torch.Tensor

    def __init__(
        self, dtype: torch.dtype, scale: float, zero_point: int, quant_min: int, quant_max: int, qscheme: torch.qscheme
    ) -> None:
        super().__init__()
        self.dtype, self.quant_min, self.quant_max, self.qscheme = dtype, quant_min, quant_max, qscheme
        self.register_buffer("scale", torch.tensor([scale], dtype=torch.float32))
        self.register_buffer("zero_point", torch.tensor([zero_point], dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.scale, self.zero_point


class WeightObserver(RangeObserver):
    """The symmetric range of the weights, for the tensor or for each channel.

    Args:
        search: `Observer.for_weights`.
        ch_axis: axis of the channels, or None for one range.
    """

    widens: ClassVar[bool] = False

    def __init__(
        self,
        *limits: Any,
        search: Callable[[torch.Tensor, int], torch.Tensor],
        ch_axis: int | None = None,
        **more: Any,
    ) -> None:
        super().__init__(*limits, **more)
        self._search = search
        self._seen: torch.Tensor | None = None
        self._version = -1
        if ch_axis is not None:
            self.ch_axis = ch_axis
            self.register_buffer("min_val", torch.tensor([]))
            self.register_buffer("max_val", torch.tensor([]))

    def see(self, x: torch.Tensor) -> None:
        # Calibration shows the same weights in every call. The tensor is kept alive, so that no other reuses its
        # address.
        version = version_of(x)
        if self._seen is not None and self._seen.data_ptr() == x.data_ptr() and self._version == version:
            return
        self._seen, self._version = x, version
        axis = getattr(self, "ch_axis", None)
        rows = x.reshape(1, -1) if axis is None else x.transpose(0, axis).reshape(x.shape[axis], -1)
        ends = self._search(rows.to(self.min_val.dtype), self.quant_max)
        ends = ends[0] if axis is None else ends
        self.min_val.resize_(ends.shape).copy_(-ends)
        self.max_val.resize_(ends.shape).copy_(ends)


class HistogramObserver(RangeObserver):
    """Counts values in bins of equal width, from which `searched` finds the range.

    Values beyond the bins widen them: each is split into parts, which fall into the new bins.
    """

    of_extremes: ClassVar[bool] = False
    bins: ClassVar[int] = at.BINS
    _PARTS: ClassVar[int] = 16  # a power of two: parts of counts, and their sums, are exact
    _MIDDLES: ClassVar[Array] = np.arange(bins * _PARTS).reshape(bins, _PARTS) + 0.5  # in widths of a part
    histogram: torch.Tensor  # values per bin, from ``min_val`` to ``max_val``

    def __init__(self, *limits: Any, **more: Any) -> None:
        super().__init__(*limits, **more)
        self.register_buffer("histogram", torch.zeros(self.bins, dtype=torch.float64))

    def see(self, x: torch.Tensor) -> None:
        x = x.to(self.min_val.dtype)
        values = x.cpu().to(torch.promote_types(x.dtype, torch.float32)).numpy()  # which has no bfloat16
        low, high = float(values.min()), float(values.max())
        if math.isnan(low):
            raise ModelError(
                "An observer is shown NaN, from which no range can be learnt.",
                hint="look for a division by zero or the logarithm of what is not positive in the model",
            )
        if math.isinf(low) or math.isinf(high):
            values = values[np.isfinite(values)]
            if not values.size:
                return
            low, high = float(values.min()), float(values.max())
        first, last = float(self.min_val), float(self.max_val)
        is_first = math.isinf(first) or math.isinf(last)
        low, high = (low, high) if is_first else (min(low, first), max(high, last))
        counts = self._counted(values, low, high)
        if (low, high) == (first, last):
            self.histogram.add_(torch.from_numpy(counts).to(self.histogram.device))
        else:
            self.histogram.copy_(torch.from_numpy(counts if is_first else self._moved(low, high) + counts))
            self.min_val.fill_(low)
            self.max_val.fill_(high)

    def _counted(self, x: Array, low: float, high: float) -> Array:
        """Return how many values are in each bin from ``low`` to ``high``, as `torch.histc` does; all are in one."""
        margin = 0.0 if low < high else max(1.0, math.ulp(low))  # 1e38 + 1 is 1e38
        low, high = low - margin, high + margin
        x, found = x.ravel(order="K"), np.zeros(1)
        for start in range(0, x.size, at.COUNTED):
            place = x[start : start + at.COUNTED] - np.float64(low)
            place *= self.bins
            place /= high - low
            found = found + np.bincount(np.minimum(place.astype(np.int64), self.bins - 1), minlength=self.bins)
        return found

    def _moved(self, low: float, high: float) -> Array:
        """Return the counts in bins from ``low`` to ``high``, which contain the current ones."""
        first, last = float(self.min_val), float(self.max_val)
        if first == last:
            return self._counted(np.array([first]), low, high) * float(self.histogram.sum())
        count = self.histogram.cpu().double().numpy()
        filled = count.nonzero()[0]  # most bins of a small tensor are empty
        middle = self._MIDDLES[filled] * ((last - first) / (self.bins * self._PARTS)) + first
        place = np.minimum((middle - low) / ((high - low) / self.bins), self.bins - 1).astype(np.int64)
        return np.bincount(place.ravel(), (count[filled] / self._PARTS).repeat(self._PARTS), self.bins)

    def found(self) -> tuple[torch.Tensor, torch.Tensor]:
        low, high = float(self.min_val), float(self.max_val)
        if self.is_settled or (high - low) / self.bins == 0.0:
            return self.min_val, self.max_val
        first, last = self.searched(low, high, self.histogram.cpu().double())
        return torch.tensor(first).to(self.min_val), torch.tensor(last).to(self.max_val)

    def searched(self, low: float, high: float, count: torch.Tensor) -> tuple[float, float]:
        """Return the two ends of the range.

        Args:
            low, high: of the bins.
            count: float64, values in each.
        """
        raise NotImplementedError

    @property
    def is_symmetric(self) -> bool:
        """True for zero point 0."""
        return self.qscheme in _SYMMETRIC


def in_order(values: torch.Tensor) -> torch.Tensor:
    """Return the sum along the last axis in float64, in order: the order of ``sum`` depends on the processor."""
    return values.double().cumsum(-1)[..., -1]
