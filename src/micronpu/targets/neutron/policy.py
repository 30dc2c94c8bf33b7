"""Neutron's partitioning policy: its rules, and the rewrites that satisfy them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from micronpu.chips.core import Core
from micronpu.container.payload import MOST_TENSORS
from micronpu.frontend.program import written_names
from micronpu.ir.graph import Graph, Node
from micronpu.partition.policy import Decide, Policy, reason_at
from micronpu.passes import Pipeline, run_passes
from micronpu.passes.choose import Choice, choose
from micronpu.report.verdict import Reason
from micronpu.targets.cortexm.costs import host_cycles, leftover_cycles
from micronpu.targets.neutron.costs import operation_cycles
from micronpu.targets.neutron.options import CustomDelegationOptions, NeutronOptions
from micronpu.targets.neutron.rewrites import REWRITES
from micronpu.targets.neutron.rules import check_node
from micronpu.targets.rules import Checks, refusal

_FLASH_BYTES_PER_CYCLE = 1  # an assumption: order of magnitude of an octal flash beside a core of 200 to 300 MHz


def neutron_policy(
    options: NeutronOptions,
    name: str = "",
    delegation: CustomDelegationOptions | None = None,
    core: Core | None = None,
    checks: Checks = (),
) -> Policy:
    """Return the partitioning policy of a Neutron; the report states its assumptions.

    Args:
        name: of the target in the report; default: derived from the chip.
        delegation: delegation policy; default: defensive.
        core: computes unsupported operators in int8; None: the core computes them in float.
        checks: user-defined; operators that one of them refuses are not delegated.
    """

    def exclude(node: Any) -> Reason | None:
        operator = options.excluded(written_names(node))
        if operator is None:
            return refusal(node, checks)
        detail = f"aten.{operator} is in operators_not_to_delegate"
        return reason_at(node, "is_wanted", "The user wants the operator on the NPU.", detail)

    def finish(graph: Graph, pipeline: Pipeline) -> Graph:
        return run_passes(graph, disabled=options.disabled_graph_passes, pipeline=pipeline)

    return Policy(
        name=name or f"{options.target_spec.chip.name}-neutron",
        decide=decide_for(options, core),
        exclude=exclude,
        finish=finish,
        # Without int8 kernels on the core, each move is a float operator between quantizes.
        allow_moves=core is None,
        allow_no_op_partitions=(delegation or CustomDelegationOptions()).allow_no_op_partitions,
        notes=options.target_spec.notes,
        most_tensors=MOST_TENSORS,
    )


def decide_for(options: NeutronOptions, core: Core | None = None) -> Decide:
    """Decide for the node itself if it satisfies every rule; else for the cheapest rewrites, if they cost less than the
    core."""
    target = options.target_spec
    # If a clock is unknown, cycles of both count the same.
    clocks = (target.npu.clock_mhz, target.core_clock_mhz)
    ratio = clocks[0] / clocks[1] if clocks[0] and clocks[1] else 1.0

    def decide(node: Node) -> Choice | list[Reason]:
        reasons = check_node(node, target)
        if not reasons:
            return Choice((node,))
        found = cheapest(node, options)
        if found is None:
            return reasons
        cycles = ratio * (host_cycles(node) if core is None else leftover_cycles(node, core))
        if found.cost < cycles:
            return found
        dearer = f"{', '.join(found.rewrites)} would take {found.cost:,.0f} cycles of the NPU, the core {cycles:,.0f}"
        return [replace(reason, detail=f"{reason.detail}; {dearer}") for reason in reasons]

    return decide


def cheapest(node: Node, options: NeutronOptions) -> Choice | None:
    """Return the cheapest nodes that satisfy every rule, including cycles to load added constants from flash."""
    target = options.target_spec

    def estimate(nodes: Sequence[Node], instead: Node) -> float:
        known = {id(t.data) for t in instead.inputs}
        return sum(operation_cycles(n, target.npu) + _added(n, known) for n in nodes)

    return choose(
        node, lambda n: not check_node(n, target), estimate, REWRITES, disabled=options.disabled_node_rewrites
    )


def _added(node: Node, known: set[int]) -> int:
    """Cycles to load added constants from flash."""
    added = sum(t.type.bytes for t in node.inputs if t.is_constant and id(t.data) not in known)
    return added // _FLASH_BYTES_PER_CYCLE
