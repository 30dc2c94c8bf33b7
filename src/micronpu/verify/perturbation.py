"""Perturbation of a quantized model's results by different rounding.

Integers of a program and the floats of a quantized model occasionally round differently, by an LSB. The position of the
largest of nearly equal values, or a comparison of two, may then change completely without an error.  To recognize this,
the model is run with LSBs added where it rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node

from micronpu.frontend.program import ProgramView, is_quantize
from micronpu.upstream.torch import tree_leaves
from micronpu.verify.thresholds import EXACT, ROUNDED


def perturbed(module: GraphModule, rows: Sequence[Sequence[torch.Tensor]], seed: int) -> tuple[torch.Tensor, ...]:
    """Return the results of the last sample, with rounded values that are perturbed by up to an LSB.

    Args:
        rows: samples that run one after the other; more than one is relevant only for a module with states.
    """
    model = _Perturbed(module, seed)
    results: Any = ()
    for row in rows:
        results = model.run(*row)
    return tuple(r for r in tree_leaves(results) if isinstance(r, torch.Tensor))


class _Perturbed(Interpreter):
    def __init__(self, module: GraphModule, seed: int) -> None:
        super().__init__(module)
        self._random = torch.Generator().manual_seed(seed)
        self._share = 0.5 ** (seed % 4)  # maximum share of perturbed values; many at once mask each other
        view = ProgramView(module)
        self._edges = {n: view.edge(n) for n in module.graph.nodes if n.op == "call_function" and is_quantize(n)}

    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        edge, source = self._edges.get(n), n.args[0] if n.args else None
        if edge is None or not isinstance(source, Node) or source.op == "placeholder" or result.dtype not in ROUNDED:
            return result
        exact = self.env[source].double() / edge.qparams.scale[0]
        rounded = (exact - exact.round()).abs() > EXACT
        most = ROUNDED[result.dtype]
        moves = rounded & (torch.rand(result.shape, generator=self._random) < self._share)
        steps = torch.randint(-most, most + 1, result.shape, generator=self._random) * moves
        return (result.to(torch.int32) + steps).clamp(*edge.limits).to(result.dtype)
