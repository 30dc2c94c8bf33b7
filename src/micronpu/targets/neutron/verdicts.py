"""Neutron's rules applied to a whole program."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from torch.fx import Node

from micronpu.chips.core import Core
from micronpu.frontend.program import ProgramView, origin_of, written_names
from micronpu.partition.partition import Partitioning, partition
from micronpu.report.verdict import Reason
from micronpu.targets.neutron.cures import cure
from micronpu.targets.neutron.options import CustomDelegationOptions, NeutronCompileOptions
from micronpu.targets.neutron.rules import check_node
from micronpu.targets.neutron.target_spec import NeutronTargetSpec


def neutron_partition(
    view: ProgramView,
    target: NeutronTargetSpec,
    options: NeutronCompileOptions,
    name: str = "",
    delegation: CustomDelegationOptions | None = None,
    shared: Collection[Node] = (),
    refused: Mapping[str, Reason] | None = None,
    core: Core | None = None,
) -> Partitioning:
    """Partitions and verdicts of a quantized program; the report says what is assumed about the device.

    Args:
        name: of the target in the report; made of the chip's unless given.
        delegation: how bold to be; the default is defensive.
        shared, refused: see `partition`.
        core: computes in int8 what the Neutron does not take; None where the host does in float.
    """
    allow_no_ops = (delegation or CustomDelegationOptions()).allow_no_op_partitions

    def exclude(node: Node) -> Reason | None:
        name = options.excluded(written_names(node))
        if name is None:
            return None
        return Reason(
            "is_wanted",
            "The user wants the operator on the NPU.",
            f"aten.{name} is in operators_not_to_delegate",
            node.name,
            origin_of(node).source,
        )

    made = partition(
        view,
        name or f"{target.chip.name}-neutron",
        lambda n: check_node(n, target),
        exclude,
        cure=lambda n: found.name if (found := cure(n, target, options.disabled_passes, core)) is not None else None,
        allow_no_op_partitions=allow_no_ops,
        shared=shared,
        refused=refused,
    )
    return replace(made, report=replace(made.report, notes=(*made.report.notes, *target.notes)))
