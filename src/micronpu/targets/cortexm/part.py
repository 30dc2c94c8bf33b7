"""A Cortex-M core beside an NPU: what it takes, and the calls of CMSIS-NN's kernels that compute it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from torch.fx import GraphModule

from micronpu.chips.core import Core
from micronpu.ir.graph import Graph, Node
from micronpu.partition.device import CorePart
from micronpu.partition.outline import DelegateCall
from micronpu.partition.policy import Policy
from micronpu.passes.choose import Choice
from micronpu.report.delegation import Cost
from micronpu.report.estimate import Latency
from micronpu.report.verdict import Reason
from micronpu.targets.cortexm.costs import core_costs, core_latency
from micronpu.targets.cortexm.emit import emit
from micronpu.targets.cortexm.legalize import legalize
from micronpu.targets.cortexm.rewrites import REWRITES
from micronpu.targets.cortexm.rules import check_node

if TYPE_CHECKING:
    from executorch.exir import EdgeProgramManager


class CortexMPart(CorePart):
    """What a Cortex-M core computes in int8.

    Args:
        disabled: names of rewrites to leave out.
    """

    def __init__(self, core: Core, disabled: Sequence[str] = ()) -> None:
        self.core = core
        self._disabled = tuple(disabled)

    def policy(self) -> Policy:
        def decide(node: Node) -> Choice | list[Reason]:
            return check_node(node, self._disabled) or Choice((node,))

        return Policy(
            name=self.core.title,
            decide=decide,
            finish=lambda graph, pipeline: legalize(graph, self._disabled, pipeline),
            allow_no_op_partitions=True,
            allow_empty=True,
            finishing=frozenset(rewrite.name for rewrite in REWRITES),
        )

    def module(self, graph: Graph) -> GraphModule:
        return emit(graph, self.core)

    def adapt(self, module: GraphModule) -> None:
        if any(isinstance(m, DelegateCall) for m in module.modules()):
            return
        from micronpu.targets.cortexm.lower import calls_a_delegate, quantize_by_kernels_of_the_core

        if not calls_a_delegate(module):
            quantize_by_kernels_of_the_core(module)

    def finish(self, edge: EdgeProgramManager) -> None:
        from micronpu.targets.cortexm.lower import plan_scratch

        plan_scratch(edge)

    def costs(self, graph: Graph) -> Mapping[int, Cost]:
        return core_costs(graph, self.core)

    def latency(self, graphs: Iterable[Graph]) -> tuple[Latency, ...]:
        return core_latency(graphs, self.core)
