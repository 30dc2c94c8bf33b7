"""How near to float a network comes with every value on a grid of its own range, beside what its program gives.

That is what int8 alone asks for: one rounding of each operator of the user's model, none inside of it, and no grid that
is shared, dictated or too short.  A program that is much farther from float loses more than it has to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch.fx import Node

from micronpu.frontend.states import held
from micronpu.quantize.config import ACTIVATION_EPS
from micronpu.quantize.eager import Eager
from micronpu.quantize.recordings import tensors_of
from micronpu.quantize.unrounded import Grid, Row, Unrounded, float_leaves, noise
from micronpu.report.accuracy import decibels

_STEPS = 255


@dataclass(frozen=True)
class Beside:
    """Of one output, in dB against float.

    Attributes:
        sqnr: of the program.
        possible: with every value on a grid of its own range.
        rows: on which both were measured.
    """

    sqnr: float
    possible: float
    rows: int

    @property
    def lost(self) -> float:
        """dB that the program is farther from float."""
        return self.possible - self.sqnr


def beside_own_grids(
    unrounded: Unrounded, tried: Sequence[Row], exact: Sequence[Row], results: Sequence[Row], seen: Sequence[Row]
) -> list[Beside]:
    """For each float output.

    Args:
        tried: rows that the program ran, with the results of the float model and its own.
        seen: rows that chose the ranges, for which the quantized module stands for the program.
    """
    first: dict[Node, tuple[float, float]] = {}
    wanted = []
    for row in seen:
        values = unrounded.exact(row)
        wanted.append(unrounded.outputs(values))
        for node in _ends(unrounded):
            if not values[node].is_floating_point() or not values[node].numel():
                continue
            low, high = values[node].nan_to_num(posinf=0.0, neginf=0.0).aminmax()
            least, most = first.get(node, (0.0, 0.0))
            first[node] = min(least, float(low)), max(most, float(high))
    grids = {node: _grid(*ends) for node, ends in first.items()}
    eager = Eager(held(unrounded.module))
    ours = [float_leaves(r) for r in results] + [float_leaves(tensors_of(eager.run(*row))) for row in seen]
    floats = [float_leaves(r) for r in exact] + wanted
    best = [unrounded.on_grids(row, grids) for row in (*tried, *seen)]
    sums = []
    for given in (ours, best):
        by_row = [noise(y, x) for y, x in zip(given, floats, strict=True)]
        sums.append([decibels(sum(s for s, _ in of), sum(e for _, e in of)) for of in zip(*by_row, strict=True)])
    return [Beside(own, possible, len(floats)) for own, possible in zip(*sums, strict=True)]


def _grid(low: float, high: float) -> Grid:
    step = max((high - low) / _STEPS, ACTIVATION_EPS["int8"])
    return step, max(-128, min(127, round(-128 - low / step)))


def _ends(unrounded: Unrounded) -> list[Node]:
    """The quantize nodes behind the last of what each operator of the user's model was written as, and of inputs."""
    last = {_name(layer.first): layer.quantize for layer in unrounded.layers}
    return list(last.values())


def _name(node: Node) -> str:
    """Of the operator in the exported program that a node was made of."""
    sources, name = list(node.meta.get("from_node") or ()), node.name
    while sources:
        name, sources = str(sources[0].name), list(sources[0].from_node)
    return name
