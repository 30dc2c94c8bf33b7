"""The corrections of quantization with which a sparse network is nearest to the float one.

Fewer weights make up less for each other's rounding: what int8 adds to the errors of a sparse network is more than what
it adds to the dense one's, and corrections take a good part of it out again, at no cycle.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import asdict

from torch.fx import GraphModule

from micronpu.base.errors import ModelError
from micronpu.quantize.corrections import Corrections
from micronpu.quantize.quantizer import StaticQuantizer
from micronpu.sparsity.judge import Judge
from micronpu.sparsity.network import Row
from micronpu.sparsity.price import integers

TRIED = (
    Corrections(fit_ranges=True, bias_correction=True),
    Corrections(fit_ranges=True, bias_correction=True, adaptive_rounding=True),
)
"""Beside none."""


def names_of(corrections: Corrections) -> tuple[str, ...]:
    """Those that are made."""
    return tuple(name for name, made in asdict(corrections).items() if made)


def with_corrections(quantizer: StaticQuantizer, names: Sequence[str]) -> StaticQuantizer:
    """A quantizer with these corrections, the one that is given where there are none."""
    if not names:
        return quantizer
    return copy.deepcopy(quantizer).set_corrections(Corrections(**dict.fromkeys(names, True)))


def nearest(
    model: GraphModule, rows: Sequence[Row], quantizer: StaticQuantizer, judge: Judge, tries: bool
) -> tuple[GraphModule, tuple[str, ...]]:
    """The integer network of a float program that is nearest to the float network, and its corrections.

    Args:
        rows: that ranges and corrections are taken from; the judge has others.
        tries: whether corrections are tried, where the quantizer has none of its own.

    Returns:
        The names of the corrections are those that were chosen here, and not the quantizer's own.
    """
    plain = integers(model, rows, quantizer)
    if not tries or quantizer.settings.corrections != Corrections():
        return plain, ()
    best: tuple[float, GraphModule, tuple[str, ...]] = (judge.distance(plain), plain, ())
    for names in map(names_of, TRIED):
        try:
            made = integers(model, rows, with_corrections(quantizer, names))
        except ModelError:  # such as an operator without derivatives: the network was quantized without them
            continue
        distance = judge.distance(made)
        if distance < best[0]:
            best = distance, made, names
    return best[1], best[2]
