"""Interface of observers: modules that see values in calibration, and choose their qparams.

`micronpu.quantize.observers` lists the observers by their names.

Qparams depend on exact values and on IEEE 754 operations that every machine rounds alike; sums are computed in float64,
in a fixed order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from micronpu.base.callers import warn
from micronpu.base.errors import ModelError
from micronpu.quantize import thresholds as at
from micronpu.quantize.range_of import Needs, Statistics, Thresholds, qparams_of
from micronpu.upstream.torch import version_of

_SYMMETRIC = (torch.per_tensor_symmetric, torch.per_channel_symmetric)


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
        widens: True if the farthest extremes are kept, and give the range a margin.
        asks: needs of all observers of a kind.
        counted: names of the numbers that a checkpoint holds besides the buffers, old ones first.
        calls, values: numbers of observed calls and values.
        is_settled: 1 if the ends are given, and replace those that were found.
        is_calibrated: True after calibration: later values are repetitions, and not observed.
        farthest: [2, `EXTREMES`, 2], see `Statistics`.
        singularity: a `micronpu.quantize.solver.neighbours.Singularity`, or None.
        lowest, highest: observed extremes, even beyond `Needs.within`.
    """

    min_val: torch.Tensor
    max_val: torch.Tensor
    eps: torch.Tensor
    of_extremes: ClassVar[bool] = True
    averages: ClassVar[bool] = False
    widens: ClassVar[bool] = True
    counted: ClassVar[tuple[str, ...]] = ("calls", "values", "lowest", "highest", "is_settled")
    asks: ClassVar[Mapping[str, Any]] = {}
    farthest: torch.Tensor
    is_dynamic = False  # torchao asks
    is_calibrated = False
    singularity: Any = None

    def __init__(
        self, dtype: torch.dtype, quant_min: int, quant_max: int, qscheme: torch.qscheme, eps: float = 2.0**-23
    ) -> None:
        super().__init__()
        self.dtype, self.quant_min, self.quant_max, self.qscheme = dtype, quant_min, quant_max, qscheme
        self.needs = Needs((quant_min, quant_max), eps, qscheme in _SYMMETRIC, **self.asks)
        self.calls = self.values = self.is_settled = 0  # numbers, so that they are cached
        self.lowest = self.highest = 0.0
        self.register_load_state_dict_pre_hook(_make_room)  # type: ignore[no-untyped-call]
        self.register_buffer("eps", torch.tensor([eps]))
        self.register_buffer("min_val", torch.tensor(torch.inf))
        self.register_buffer("max_val", torch.tensor(-torch.inf))
        if self.widens:
            self.register_buffer("farthest", torch.full((2, at.EXTREMES, 2), -torch.inf, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.is_calibrated:
            return x
        seen = x.detach() if self.singularity is None else self.singularity.counting(x.detach())
        within = self.needs.within
        if math.isfinite(within[1] - within[0]) and seen.numel():
            most = torch.finfo(torch.float32).max  # also in float64: the scale is a float32
            low, high = torch.aminmax(seen.clamp(-most, most))
            self.lowest, self.highest = min(self.lowest, float(low)), max(self.highest, float(high))
            seen = seen.clamp(*within)
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
            for row, end in zip(self.farthest, (-low, high), strict=True):
                if end > float(row[-1, 0]):
                    known = sorted([*row.tolist(), [end, self.calls]], key=lambda own: -own[0])[: at.EXTREMES]
                    row.copy_(torch.tensor(known, dtype=torch.float64))
            self.calls, self.values = self.calls + 1, self.values + x.numel()

    def add_thresholds(self, thresholds: Thresholds) -> None:
        """Add thresholds."""
        self.needs.thresholds |= thresholds

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
        """Replace the range."""
        self.is_settled = 1
        self.min_val.copy_(low)
        self.max_val.copy_(high)

    @property
    def statistics(self) -> Statistics:
        """Return what calibration has collected, after the first call."""
        low, high = (end.detach().float().cpu().numpy() for end in self.found())
        rows = self.farthest.tolist() if self.widens else [(), ()]
        farthest = [[(end, int(call)) for end, call in row if math.isfinite(end)] for row in rows]
        return Statistics(low, high, self.calls, self.values, farthest, self.lowest, self.highest)

    @property
    def extremes(self) -> tuple[Statistics, Needs] | None:
        """Return what the range follows from; None if it follows from other values, too, or from few calls."""
        own = type(self).calculate_qparams is RangeObserver.calculate_qparams and self.singularity is None
        return (self.statistics, self.needs) if own and self.calls >= at.FEWEST_EXTREMES else None

    def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scale and zero point, of shape [1] or [channels]."""
        if self.is_empty:
            warn("An observer has seen no values and returns scale 1, zero point 0. Run the prepared module first.")
            return torch.tensor([1.0]), torch.tensor([0])
        needs = self.needs if self.singularity is None else replace(self.needs, singular=self.singularity.ends())
        made = qparams_of(self.statistics, needs)
        scale, zero_point = (torch.from_numpy(numbers).to(self.min_val.device) for numbers in made)
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


def _make_room(observer: nn.Module, state_dict: Mapping[str, Any], prefix: str, *_: Any) -> None:
    """Resize unused buffers of per-channel weights to those of a checkpoint."""
    for name, buffer in observer.named_buffers(recurse=False):
        saved = state_dict.get(prefix + name)
        if isinstance(saved, torch.Tensor) and not buffer.numel():
            buffer.resize_(saved.shape)
        elif name == "farthest" and isinstance(saved, torch.Tensor) and saved.shape != buffer.shape:
            state_dict[prefix + name] = buffer  # type: ignore[index]  # of another version: without its margin


class FixedObserver(nn.Module):
    """Returns fixed qparams."""

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
        """Return scale and zero point, of shape [1]."""
        return self.scale, self.zero_point


class WeightObserver(RangeObserver):
    """The symmetric range of the weights, for the tensor or for each channel.

    Args:
        search: `Observer.for_weights`.
        ch_axis: axis of the channels, or None for one range.
    """

    widens: ClassVar[bool] = False

    def __init__(
        self, *limits: Any, search: Callable[[torch.Tensor, int], torch.Tensor], ch_axis: int | None = None, **more: Any
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

    Attributes:
        histogram: values per bin, from ``min_val`` to ``max_val``.
    """

    of_extremes: ClassVar[bool] = False
    bins: ClassVar[int] = at.BINS
    _PARTS: ClassVar[int] = 16  # a power of two: parts of counts, and their sums, are exact
    _MIDDLES: ClassVar[NDArray[Any]] = np.arange(bins * _PARTS).reshape(bins, _PARTS) + 0.5  # in widths of a part
    histogram: torch.Tensor

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

    def _counted(self, x: NDArray[Any], low: float, high: float) -> NDArray[Any]:
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

    def _moved(self, low: float, high: float) -> NDArray[Any]:
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
