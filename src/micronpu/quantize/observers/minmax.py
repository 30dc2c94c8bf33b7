"""Every value that was seen is in the range."""

from __future__ import annotations

import torch

from micronpu.quantize.observing import Observer, RangeObserver


class MinMaxObserver(RangeObserver):
    """The extremes of what was seen."""


def largest(weights: torch.Tensor, most: int) -> torch.Tensor:
    """Of each row of [rows, n] the largest magnitude."""
    return weights.abs().amax(1) if weights.numel() else weights.new_zeros(len(weights))


OBSERVER = Observer("minmax", MinMaxObserver, for_weights=largest)
