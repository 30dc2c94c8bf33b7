"""The range of all values."""

from __future__ import annotations

import torch

from micronpu.quantize.observing import Observer, RangeObserver


class MinMaxObserver(RangeObserver):
    """The extremes of the values."""


def largest(weights: torch.Tensor, most: int) -> torch.Tensor:
    """Return the largest magnitude of each row of [rows, n]."""
    return weights.abs().amax(1) if weights.numel() else weights.new_zeros(len(weights))


OBSERVER = Observer("minmax", MinMaxObserver, for_weights=largest)
