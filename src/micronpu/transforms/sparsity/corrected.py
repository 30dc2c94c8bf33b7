"""Select the quantization corrections for a sparse network.

Quantization to int8 adds more error to a sparse network than to the dense one: fewer weights compensate for each
other's rounding. Corrections remove a good part of it at no cost in cycles. Adaptive rounding is not among them: for
weights that were fitted with their qparams in view it gains nothing beyond the others.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch.fx import GraphModule

from micronpu.base.errors import ModelError
from micronpu.quantize.corrections import Corrections
from micronpu.quantize.quantizer import StaticQuantizer
from micronpu.transforms.sparsity.judge import Judge, SparseJudgement
from micronpu.transforms.sparsity.network import Row
from micronpu.transforms.sparsity.price import integers

TRIED = ("fit_ranges", "bias_correction")
"""Corrections that are tried, all at once, as an alternative to none."""


def with_corrections(quantizer: StaticQuantizer, names: Sequence[str]) -> StaticQuantizer:
    """Return a quantizer with these corrections; the given one if there are none."""
    if not names:
        return quantizer
    return copy.deepcopy(quantizer).set_corrections(Corrections(**dict.fromkeys(names, True)))


@dataclass(frozen=True)
class Nearest:
    """The integer network nearest to the float one.

    Attributes:
        network: quantized from a float program.
        corrections: those chosen here, without the quantizer's own.
        judgement: of the network.
    """

    network: GraphModule
    corrections: tuple[str, ...]
    judgement: SparseJudgement


def nearest(
    model: GraphModule,
    rows: Sequence[Row],
    quantizer: StaticQuantizer,
    judge: Judge,
    tries: bool,
    progress: Callable[[float], None] = lambda part: None,
) -> Nearest:
    """Return the integer network nearest to the float network. Each candidate is evaluated once.

    Args:
        rows: samples for ranges and corrections; the judge has different ones.
        tries: try corrections, unless the quantizer has some.
    """

    def made(names: tuple[str, ...]) -> Nearest:
        network = integers(model, rows, with_corrections(quantizer, names))
        progress(0.7 if names else 0.2)
        judged = judge.judged(network)
        progress(1.0 if names else 0.3)
        return Nearest(network, names, judged)

    plain = made(())
    if not tries or quantizer.settings.corrections != Corrections():
        return plain
    try:
        corrected = made(TRIED)
    except ModelError:  # such as an operator without derivatives: then corrections are not used
        return plain
    return corrected if corrected.judgement.distance < plain.judgement.distance else plain
