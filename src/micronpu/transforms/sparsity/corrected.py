"""The corrections of quantization with which a sparse network is nearest to the float one.

What int8 adds to the errors of a sparse network is more than what it adds to the dense one's: fewer weights make up
less for each other's rounding.  Corrections take a good part of it out again, at no cycle.  Adaptive rounding is not
among them: of weights that were fitted with the grid in view it takes out nothing beyond the others.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch.fx import GraphModule

from micronpu.base.errors import ModelError
from micronpu.quantize.corrections import Corrections
from micronpu.quantize.quantizer import StaticQuantizer
from micronpu.transforms.sparsity.judge import Judge, Judgement
from micronpu.transforms.sparsity.network import Row
from micronpu.transforms.sparsity.price import integers

TRIED = ("fit_ranges", "bias_correction")
"""Together, beside none."""


def with_corrections(quantizer: StaticQuantizer, names: Sequence[str]) -> StaticQuantizer:
    """A quantizer with these corrections, the one that is given where there are none."""
    if not names:
        return quantizer
    return copy.deepcopy(quantizer).set_corrections(Corrections(**dict.fromkeys(names, True)))


@dataclass(frozen=True)
class Nearest:
    """The integer network that is nearest to the float one.

    Attributes:
        network: made of a float program.
        corrections: those that were chosen here, and not the quantizer's own.
        judgement: of the network.
    """

    network: GraphModule
    corrections: tuple[str, ...]
    judgement: Judgement


def nearest(
    model: GraphModule,
    rows: Sequence[Row],
    quantizer: StaticQuantizer,
    judge: Judge,
    tries: bool,
    progress: Callable[[float], None] = lambda part: None,
) -> Nearest:
    """The integer network of a float program that is nearest to the float network.  Each is judged once.

    Args:
        rows: that ranges and corrections are taken from; the judge has others.
        tries: whether corrections are tried, where the quantizer has none of its own.
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
    except ModelError:  # such as an operator without derivatives: the network was quantized without them
        return plain
    return corrected if corrected.judgement.distance < plain.judgement.distance else plain
