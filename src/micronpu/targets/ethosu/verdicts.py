"""Ethos-U's rules applied to a whole program."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from torch.fx import GraphModule, Node
from torch.fx.passes.operator_support import OperatorSupportBase

from micronpu.frontend.program import ProgramView, is_compute, origin_of
from micronpu.ops.movement import Reshape
from micronpu.partition.partition import Partitioning, partition
from micronpu.report.verdict import Reason
from micronpu.targets.ethosu.cures import cure_name
from micronpu.targets.ethosu.options import EthosUCompileSpec
from micronpu.targets.ethosu.rules import judge_of


def ethosu_partition(
    view: ProgramView,
    spec: EthosUCompileSpec,
    name: str = "",
    shared: Collection[Node] = (),
    refused: Mapping[str, Reason] | None = None,
    additional_checks: Sequence[OperatorSupportBase] = (),
) -> Partitioning:
    """Partitions and verdicts of a quantized program.

    Args:
        name: of the target in the report; the accelerator's unless given.
        shared, refused: see `partition`.
        additional_checks: the user's own; what one of them refuses stays on the host.
    """

    judge = judge_of(spec)
    modules = dict(view.program.named_modules()) if isinstance(view.program, GraphModule) else {}

    def exclude(node: Node) -> Reason | None:
        if not is_compute(node):
            return None
        refusing = next((c for c in additional_checks if not c.is_node_supported(modules, node)), None)
        if refusing is None:
            return None
        return Reason(
            "additional_check",
            "The user's own checks accept the operator.",
            f"{type(refusing).__name__} refuses it",
            node.name,
            origin_of(node).source,
        )

    return partition(
        view,
        name or spec.target,
        judge,
        exclude,
        cure=lambda node: cure_name(node, judge),
        shared=shared,
        refused=refused,
        allow_no_op_partitions=True,
        free=(Reshape,),
    )
