"""Confidence intervals, and significance of the difference of two programs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from micronpu.report.accuracy import Z

Array: TypeAlias = npt.NDArray[Any]

RESAMPLES = 1000
_LEAST_RESAMPLES = 100
_SECONDS = 5.0  # time limit of all resamples; a slow user-defined metric gets fewer


def mcnemar(worse: int, better: int) -> float:
    """Exact two-sided p-value (McNemar, 1947) of an uneven split under equal probabilities.

    Args:
        worse, better: number of samples that only the one, or only the other program classifies correctly.
    """
    changed = worse + better
    if not changed:
        return 1.0
    tail = sum(math.comb(changed, k) for k in range(min(worse, better) + 1))
    return min(1.0, float(2 * tail / 2**changed))


def paired_share(worse: int, better: int, rows: int) -> tuple[float, float]:
    """95 % interval of the difference of two proportions on the same samples (Agresti and Min, 2005)."""
    difference = (better - worse) / (rows + 2)
    spread = math.sqrt(max(worse + better + 1 - (better - worse) ** 2 / (rows + 2), 0.0)) / (rows + 2)
    return difference - Z * spread, difference + Z * spread


def bootstrap(score: Callable[[Array], tuple[float, ...]], rows: int, *, seed: int = 0) -> Array:
    """Scores of resamples: [resamples, number of scores].

    Args:
        score: returns scores of several programs on the samples with these indices.
        rows: number of samples to draw from, with replacement.
    """
    random = np.random.default_rng(seed)
    found: list[tuple[float, ...]] = []
    start = time.perf_counter()
    while len(found) < RESAMPLES:
        found.append(score(random.integers(0, rows, rows)))
        if len(found) == _LEAST_RESAMPLES:  # decided once, so that a machine always gives the same numbers
            each = (time.perf_counter() - start) / len(found)
            if each * RESAMPLES > _SECONDS:
                break
    return np.asarray(found)


def percentile_interval(values: Array) -> tuple[float, float]:
    """The central 95 % of some values; NaN is ignored."""
    known = values[np.isfinite(values)]
    if not len(known):
        return math.nan, math.nan
    low, high = np.percentile(known, (2.5, 97.5))
    return float(low), float(high)


def p_of(differences: Array) -> float:
    """Two-sided p-value of a bootstrapped difference: frequency of the other sign, or of zero."""
    known = differences[np.isfinite(differences)]
    if not len(known):
        return 1.0
    below, above = int((known <= 0).sum()), int((known >= 0).sum())
    return min(1.0, 2 * (min(below, above) + 1) / (len(known) + 1))
