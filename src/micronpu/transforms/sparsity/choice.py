"""Which layers become sparse for a number of cycles, and which point on the way is the one that was asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence

from micronpu.report.sparsity import SparsePoint
from micronpu.transforms.sparsity.options import SparsityOptions

_LEVELS = 4000
"""In which gains are counted while layers are chosen."""


def least_harm(gains: Sequence[int], harms: Sequence[float], wanted: float) -> list[int]:
    """Numbers of the things that gain what is wanted and do the least harm in sum; all where these gain less.

    The knapsack problem, gains rounded down to a 4000th of what is wanted.
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
    """The most cycles that are allowed, where there is a limit.

    Args:
        dense: cycles of the dense network.
    """
    limit = options.max_cycles
    return limit if limit is None or limit > 1 else limit * dense


def is_enough(options: SparsityOptions, points: Sequence[SparsePoint]) -> bool:
    """Whether a network that is sparser than the last of the points is of no use."""
    limit = cycles_wanted(options, points[0].cycles)
    return limit is not None and options.max_loss is None and points[-1].cycles <= limit


def choose(options: SparsityOptions, points: Sequence[SparsePoint]) -> tuple[int, str]:
    """The number of the point that fits the limits, and a sentence where none does.

    Args:
        points: the first is the dense network.
    """
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
