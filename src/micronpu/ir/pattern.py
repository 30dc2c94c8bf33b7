"""2:4 sparsity: two zeros in every four weights along the input channels, which some chips compute in half the cycles.

A group is four adjacent channels of one output at one kernel position. The last group is padded with zeros, so up to
two remaining channels always fit the pattern.
"""

from __future__ import annotations

import numpy as np

from micronpu.base.arrays import Array

GROUP = 4
KEPT = 2


def is_two_in_four(weights: Array) -> bool:
    """True if at least two of each four weights [..., C], such as [O, KH, KW, C], are zero along the last axis."""
    if weights.ndim < 2 or not weights.size:
        return False
    # Weights without the pattern usually lack it in the first output already.
    return all(int(_counts(part != 0).max()) <= KEPT for part in (weights[:1], weights))


def is_made_two_in_four(weights: Array) -> bool:
    """True if weights have the pattern by intent, not by chance or for lack of channels."""
    # A layer of zeros, or of one or two input channels, always has the pattern.
    return weights.ndim >= 2 and weights.shape[-1] > KEPT and is_two_in_four(weights) and bool(weights.any())


def _counts(used: Array) -> Array:
    """Number of nonzero weights in each group, [..., C / 4]."""
    channels = used.shape[-1]
    missing = -channels % GROUP
    if missing:
        used = np.concatenate([used, np.zeros((*used.shape[:-1], missing), bool)], axis=-1)
    counts: Array = used.reshape(*used.shape[:-1], -1, GROUP).sum(-1)
    return counts
