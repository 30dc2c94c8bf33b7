"""Choose the layers to make sparse for a target number of cycles, and the point that satisfies the limits."""

from __future__ import annotations

import math
from collections.abc import Sequence

from micronpu.report.sparsity import SparsePoint
from micronpu.transforms.sparsity.options import SparsityOptions

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
    """Maximum number of cycles, or None without a limit.

    Args:
        dense: cycles of the dense network.
    """
    limit = options.max_cycles
    return limit if limit is None or limit > 1 else limit * dense


def is_enough(options: SparsityOptions, points: Sequence[SparsePoint]) -> bool:
    """True if a network sparser than the last point cannot be useful."""
    limit = cycles_wanted(options, points[0].cycles)
    return limit is not None and options.max_loss is None and points[-1].cycles <= limit


def choose(options: SparsityOptions, points: Sequence[SparsePoint]) -> tuple[int, str]:
    """Return the index of the point that satisfies the limits, and a message if there is none.

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
