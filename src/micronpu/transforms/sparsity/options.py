"""Options for sparse weights, and the choice of layers and of a network by them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from micronpu.base.arguments import check_switch
from micronpu.base.errors import OptionError
from micronpu.report.sparsity import SparsePoint

PATTERNS = ("2:4",)


@dataclass(frozen=True, kw_only=True)
class SparsityOptions:
    """Options of the search for a sparse network.

    Attributes:
        pattern: "2:4", two zeros in every four weights along the input channels.
        max_loss: maximum loss, 0 to 1: the fraction of held-out samples whose top-1 result differs from that of the
            float network; default: no limit. With a user-defined score, in its units.
        max_cycles: maximum NPU cycles of the network; up to 1.0 relative to the dense network. If both limits are
            given, the fewest cycles within ``max_loss`` are chosen, and the report states whether they meet this limit.
        points: steps from the dense to the sparsest network, each with more sparse layers than the one before.
        steps: of training without labels, for all points in total; 0 for none.
        rate: learning rate, relative to the magnitude of the trained values.
        batch: samples per step.
        held_back: fraction of the calibration inputs that are held out to evaluate the points.
        damping: fraction of the mean second moment added to each, for robustness with few inputs.
        least_samples: minimum number of inputs of a layer, relative to its columns; with fewer, the second order is
            unreliable and the layer stays dense.
        least_gain: minimum fraction of its cycles that a layer must save to become sparse.
        dense: layers to keep dense, by path of the submodule or name of the operator.
        corrections: also quantize every point with corrections (ranges by results and biases), and keep the result
            nearest to the float network; ignored if the quantizer has corrections.
        seed: of the training; equal seeds give equal weights on machines with the same number of threads.

    Raises:
        OptionError: a value is invalid.
    """

    pattern: str = "2:4"
    max_loss: float | None = None
    max_cycles: float | None = None
    points: int = 4
    steps: int = 800
    rate: float = 8e-3
    batch: int = 32
    held_back: float = 0.2
    damping: float = 0.01
    least_samples: float = 0.25
    least_gain: float = 0.02
    dense: tuple[str, ...] = ()
    corrections: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if self.pattern not in PATTERNS:
            raise OptionError(f"There is no sparsity pattern {self.pattern!r}.", hint=f"one of {', '.join(PATTERNS)}")
        highest = {"rate": 1, "damping": 10, "held_back": 0.9, "least_samples": 100, "least_gain": 1}
        highest |= {name: math.inf for name in ("max_loss", "max_cycles") if getattr(self, name) is not None}
        for name, high in highest.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= high:
                upper = f" to {high:g}" if high < math.inf else " on"
                raise OptionError(f"`{name}` is {value!r}; it is a number from 0{upper}.", hint=f"{name}=0")
        for name, least in (("points", 1), ("steps", 0), ("batch", 1), ("seed", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise OptionError(
                    f"`{name}` is {value!r}; it is a whole number from {least} on.", hint=f"{name}={least}"
                )
        check_switch("corrections", self.corrections)
        names = self.dense
        if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(n, str) for n in names):
            raise OptionError(f"`dense` is {names!r}; it is a list of names of layers.", hint='dense=("classifier",)')
        object.__setattr__(self, "dense", tuple(names))


def sparsity_options(given: object) -> SparsityOptions | None:
    """Return the options for None, the name of a pattern, or options."""
    if given is None or isinstance(given, SparsityOptions):
        return given
    if isinstance(given, str):
        return SparsityOptions(pattern=given)
    raise OptionError(
        f"`sparsity` is of type {type(given).__name__}.", hint='sparsity="2:4", or SparsityOptions(max_loss=0.01)'
    )


_LEVELS = 4000
"""Resolution of gains in the choice of layers."""


def least_harm(gains: Sequence[int], harms: Sequence[float], wanted: float) -> list[int]:
    """Return indices of items whose gains reach the target with the least total harm; all items if they cannot.

    Solves the knapsack problem with gains rounded down to 1/4000 of the target.
    """
    if wanted <= 0:
        return []
    unit = max(wanted / _LEVELS, 1.0)
    full = math.ceil(wanted / unit)
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for number, (gain, harm) in enumerate(zip(gains, harms, strict=True)):
        for level, (sofar, chosen) in list(best.items()):
            higher = min(level + int(gain / unit), full)
            if higher not in best or sofar + harm < best[higher][0]:
                best[higher] = (sofar + harm, (*chosen, number))
    return list(best[full][1]) if full in best else list(range(len(gains)))


def cycles_wanted(options: SparsityOptions, dense: int) -> float | None:
    """Maximum number of cycles, or None without a limit."""
    limit = options.max_cycles
    return limit if limit is None or limit > 1 else limit * dense


def is_enough(options: SparsityOptions, points: Sequence[SparsePoint]) -> bool:
    """True if a network sparser than the last point cannot be useful."""
    limit = cycles_wanted(options, points[0].cycles)
    return limit is not None and options.max_loss is None and points[-1].cycles <= limit


def choose(options: SparsityOptions, points: Sequence[SparsePoint]) -> tuple[int, str]:
    """Return the index of the point that satisfies the limits, and a message if there is none."""
    limit, most = cycles_wanted(options, points[0].cycles), options.max_loss
    numbers = range(len(points))
    if most is not None:
        fitting = [i for i in numbers if points[i].loss <= most]
        if not fitting or (fitting == [0] and len(points) > 1):
            near = min(range(1, len(points)) if len(points) > 1 else numbers, key=lambda i: points[i].loss)
            return 0, (
                f"No sparse network loses at most {most:g}, and it stays dense: the nearest, point {near} with "
                f"{points[near].cycles:,} cycles, loses {points[near].loss:.4g}. "
                "Try: that as max_loss, more steps, or more inputs."
            )
        best = min(fitting, key=lambda i: points[i].cycles)
        if limit is not None and points[best].cycles > limit:
            return best, (
                f"Within a loss of {most:g} no network takes at most {limit:,.0f} cycles; the nearest takes "
                f"{points[best].cycles:,}."
            )
        return best, ""
    if limit is not None:
        fitting = [i for i in numbers if points[i].cycles <= limit]
        if fitting:
            return min(fitting, key=lambda i: points[i].loss), ""
        best = min(numbers, key=lambda i: points[i].cycles)
        return best, f"No sparse network takes at most {limit:,.0f} cycles; the nearest takes {points[best].cycles:,}."
    return min(numbers, key=lambda i: (points[i].cycles, points[i].loss)), ""
