"""Confidence intervals of figures that are measured on samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Z = 1.959963984540054
"""The normal distribution's 97.5 % point: intervals hold the true value in 95 of 100 cases."""
_STUDENT = (12.706, 4.303, 3.182, 2.776)
"""The 97.5 % points of Student's t with 1 to 4 degrees of freedom; more are computed by an expansion."""


def wilson(right: int, rows: int) -> tuple[float, float]:
    """Return the 95 % interval of a share (E. B. Wilson, 1927): ``right`` of ``rows`` samples."""
    share = right / rows
    middle = (share + Z * Z / (2 * rows)) / (1 + Z * Z / rows)
    half = Z / (1 + Z * Z / rows) * math.sqrt(share * (1 - share) / rows + Z * Z / (4 * rows * rows))
    return max(0.0, middle - half), min(1.0, middle + half)


def student(freedom: int) -> float:
    """Return the 97.5 % point of Student's t (Cornish-Fisher expansion from 5 degrees of freedom on; error at most 0.5
    %)."""
    if freedom <= len(_STUDENT):
        return _STUDENT[freedom - 1]
    first, second = (Z**3 + Z) / 4, (5 * Z**5 + 16 * Z**3 + 3 * Z) / 96
    third = (3 * Z**7 + 19 * Z**5 + 17 * Z**3 - 15 * Z) / 384
    return Z + first / freedom + second / freedom**2 + third / freedom**3


def jackknife(figure: Callable[[float, float], float], *columns: Sequence[Any]) -> tuple[float, float] | None:
    """Return the 95 % interval of a figure of two sums over samples (Tukey, 1958); None for fewer than two samples.

    Args:
        figure: such as the ratio of the sums in dB.
        columns: the terms of each sum, a number per sample.

    Returns:
        None also if the figure of all samples but one is not finite.
    """
    first, second = (np.asarray(column, np.float64) for column in columns)
    count = len(first)
    if count < 2 or not np.isfinite(first.sum()) or not np.isfinite(second.sum()):
        return None
    values = np.asarray([figure(float(a), float(b)) for a, b in zip(_others(first), _others(second), strict=True)])
    if not np.isfinite(values).all():
        return None
    half = student(count - 1) * math.sqrt((count - 1) / count * float(np.square(values - values.mean()).sum()))
    middle = figure(float(first.sum()), float(second.sum()))
    return middle - half, middle + half


def _others(terms: Any) -> Any:
    """Return sums of all terms but one.  Subtracting from the total would lose all digits of a nearly dominant term."""
    before = np.concatenate([[0.0], np.cumsum(terms)[:-1]])
    after = np.concatenate([np.cumsum(terms[::-1])[::-1][1:], [0.0]])
    return before + after
