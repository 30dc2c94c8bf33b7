"""Ethos-U's partitioning policy: what Vela accepts, and the rewrites that make it accept an operator."""

from __future__ import annotations

from collections.abc import Sequence

from torch.fx import GraphModule
from torch.fx import Node as FxNode
from torch.fx.passes.operator_support import OperatorSupportBase

from micronpu.frontend.program import is_compute
from micronpu.ir.graph import Graph, Node
from micronpu.ops.movement import Reshape
from micronpu.partition.policy import Policy, reason_at
from micronpu.passes import Pipeline
from micronpu.passes.choose import Choice, choose, no_cost
from micronpu.report.verdict import Reason
from micronpu.targets.ethosu.legalize import legalize
from micronpu.targets.ethosu.options import EthosUOptions
from micronpu.targets.ethosu.rewrites import TO_FIT
from micronpu.targets.ethosu.rules import judge_of


def ethosu_policy(spec: EthosUOptions, name: str = "", additional_checks: Sequence[OperatorSupportBase] = ()) -> Policy:
    """Return the partitioning policy of an Ethos-U.

    Args:
        name: of the target in the report; default: the accelerator's.
        additional_checks: user-defined; operators that one of them refuses are not delegated.
    """
    judge = judge_of(spec)

    def decide(node: Node) -> Choice | list[Reason]:
        # Prefer the format in which Vela accepts most operators, since a partition has a single format.
        found = choose(node, judge.prefers, no_cost, TO_FIT, disabled=spec.disabled_node_rewrites)
        return found or judge(node) or Choice((node,))

    def exclude(node: FxNode) -> Reason | None:
        if not additional_checks or not is_compute(node):
            return None
        owner = node.graph.owning_module
        modules = dict(owner.named_modules()) if isinstance(owner, GraphModule) else {}
        refusing = next((c for c in additional_checks if not c.is_node_supported(modules, node)), None)
        if refusing is None:
            return None
        sentence = "The user's own checks accept the operator."
        return reason_at(node, "additional_check", sentence, f"{type(refusing).__name__} refuses it")

    def finish(graph: Graph, pipeline: Pipeline) -> Graph:
        return legalize(graph, spec, pipeline)

    return Policy(
        name=name or spec.silicon,
        decide=decide,
        exclude=exclude,
        finish=finish,
        allow_no_op_partitions=True,
        free=(Reshape,),
        notes=spec.notes,
    )
