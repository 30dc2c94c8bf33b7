"""Which of the operators that the NPU leaves over the core computes in int8; the same rules decide and report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch.fx import Node

from micronpu.chips.core import Core
from micronpu.frontend.program import ProgramView
from micronpu.partition.partition import Group, Partitioning, partition
from micronpu.report.verdict import Reason
from micronpu.targets.cortexm.rules import check_node

_DELEGATED = "core_is_left_over"


def core_partition(view: ProgramView, core: Core, npu: Sequence[Group] = ()) -> Partitioning:
    """Groups of operators that a core computes in int8, and the verdicts on all.

    Args:
        view: a quantized program, or what `micronpu.partition.outline` left of it.
        npu: groups that are on the NPU.
    """
    delegated = {n for g in npu for n in g.nodes}

    def exclude(node: Node) -> Reason | None:
        if node not in delegated:
            return None
        return Reason(_DELEGATED, "The operator is not on the NPU.", "it is", node.name)

    return partition(view, core.title, check_node, exclude, allow_no_op_partitions=True, allow_empty=True)


def with_core(partitioning: Partitioning, leftovers: Partitioning) -> Partitioning:
    """The NPU's partitions, with the verdicts saying which of the other operators the core computes in int8.

    An operator that the core computes in float has the reasons of the core behind those of the NPU.

    Args:
        leftovers: what `core_partition` made beside the NPU's groups.
    """
    left = {v.node: v for v in leftovers.report.verdicts}
    core = leftovers.report.target
    verdicts = []
    for verdict in partitioning.report.verdicts:
        other = left.get(verdict.node)
        if verdict.delegated or other is None:
            verdicts.append(verdict)
        elif other.delegated:
            verdicts.append(replace(verdict, core=core))
        else:
            reasons = dict.fromkeys((*verdict.reasons, *(r for r in other.reasons if r.rule != _DELEGATED)))
            verdicts.append(replace(verdict, reasons=tuple(reasons)))
    return replace(partitioning, report=replace(partitioning.report, verdicts=tuple(verdicts)))
