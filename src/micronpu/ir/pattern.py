"""Two zeros in every four weights along the input channels: the pattern that some chips compute in half the cycles.

A group is four neighbouring channels of one output at one place of the kernel.  The last group is filled up with zeros,
so that up to two channels need none of their own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

GROUP = 4
KEPT = 2


def is_two_in_four(weights: npt.NDArray[Any]) -> bool:
    """Whether of each four weights along the last axis at least two are zero.

    Args:
        weights: [..., C], such as [O, KH, KW, C] of a convolution or [O, I] of a linear layer.
    """
    if weights.ndim < 2 or not weights.size:
        return False
    # Weights without the pattern lack it in the first output, as a rule.
    return all(int(_counts(part != 0).max()) <= KEPT for part in (weights[:1], weights))


def is_made_two_in_four(weights: npt.NDArray[Any]) -> bool:
    """Whether weights have the pattern, and have it by more than chance or by having hardly any channels.

    A layer of zeros, or of one or two input channels, has the pattern without anyone's doing.
    """
    return weights.ndim >= 2 and weights.shape[-1] > KEPT and is_two_in_four(weights) and bool(weights.any())


def _counts(used: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """How many of each group are used, [..., C / 4]."""
    channels = used.shape[-1]
    missing = -channels % GROUP
    if missing:
        used = np.concatenate([used, np.zeros((*used.shape[:-1], missing), bool)], axis=-1)
    counts: npt.NDArray[Any] = used.reshape(*used.shape[:-1], -1, GROUP).sum(-1)
    return counts
