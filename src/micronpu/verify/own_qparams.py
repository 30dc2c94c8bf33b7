"""Distance from float of a network in which every value has its own qparams, compared with its program.

This is the limit of int8: one rounding per operator of the user's model, none inside decompositions except the steps of
recurrent layers, and no shared, prescribed or narrow range.  A program that is much further from float has avoidable
losses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch.fx import Node

from micronpu.frontend.states import held
from micronpu.ops.recurrent import RECURRENT
from micronpu.quantize.dequantized import DequantizedReference, Row, ScaleZero, float_leaves, noise
from micronpu.quantize.eager import Eager
from micronpu.quantize.running import tensors_of
from micronpu.quantize.thresholds import ACTIVATION_EPS, STEPS_INT8
from micronpu.report.accuracy import decibels


@dataclass(frozen=True)
class Beside:
    """Ratios of one output, in dB against float.

    Attributes:
        sqnr: of the program.
        possible: if every value has its own qparams.
        rows: number of samples that both were measured on.
    """

    sqnr: float
    possible: float
    rows: int

    @property
    def lost(self) -> float:
        """dB by which the program is further from float."""
        return self.possible - self.sqnr


def beside_own_qparams(
    dequantized: DequantizedReference,
    tried: Sequence[Row],
    exact: Sequence[Row],
    results: Sequence[Row],
    seen: Sequence[Row],
) -> list[Beside]:
    """Return the ratios of each float output.

    Args:
        tried: samples that the program ran, with the results of the float model and its own.
        seen: samples that chose the ranges; those not tried are run by the quantized module instead of the program.
    """
    ends, first = _ends(dequantized), dict[Node, tuple[float, float]]()
    others = []
    for row in seen:
        values = dequantized.exact(row)
        if all(row is not known for known in tried):  # the program's own samples may have calibrated, too
            others.append((row, dequantized.outputs(values)))
        for node in (n for n in ends if values[n].is_floating_point() and values[n].numel()):
            low, high = values[node].nan_to_num(posinf=0.0, neginf=0.0).aminmax()
            least, most = first.get(node, (0.0, 0.0))
            first[node] = min(least, float(low)), max(most, float(high))
    all_qparams = {node: _qparams(*limits) for node, limits in first.items()}
    eager = Eager(held(dequantized.module))
    ours = [float_leaves(r) for r in results] + [float_leaves(tensors_of(eager.run(*row))) for row, _ in others]
    floats = [float_leaves(r) for r in exact] + [outputs for _, outputs in others]
    best = [dequantized.with_qparams(row, all_qparams) for row in (*tried, *(row for row, _ in others))]
    sums = []
    for given in (ours, best):
        by_row = [noise(y, x) for y, x in zip(given, floats, strict=True)]
        sums.append([decibels(sum(s for s, _ in of), sum(e for _, e in of)) for of in zip(*by_row, strict=True)])
    return [Beside(own, possible, len(floats)) for own, possible in zip(*sums, strict=True)]


def _qparams(low: float, high: float) -> ScaleZero:
    step = max((high - low) / STEPS_INT8, ACTIVATION_EPS["int8"])
    return step, max(-128, min(127, round(-128 - low / step)))


def _ends(dequantized: DequantizedReference) -> list[Node]:
    """Return the quantize nodes of inputs, and of the last operator of each decomposition of the user's operators.

    The steps of a recurrent layer are rounded one by one.
    """
    last: dict[Node | str, Node] = {}
    for layer in dequantized.layers:
        name, target = _source(layer.first)
        last[layer.quantize if target.removeprefix("aten.") in RECURRENT else name] = layer.quantize
    return list(last.values())


def _source(node: Node) -> tuple[str, str]:
    """Return name and target of the operator of the exported program that a node was made of."""
    sources, found = list(node.meta.get("from_node") or ()), (node.name, "")
    while sources:
        found, sources = (str(sources[0].name), str(sources[0].target)), list(sources[0].from_node)
    return found
