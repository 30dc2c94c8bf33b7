"""Which rewrite makes an operator fit for a Neutron, and whether it is worth it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from micronpu.chips.core import Core
from micronpu.ir.graph import Graph, Node
from micronpu.passes.rewrites import REWRITES
from micronpu.targets.cortexm.costs import host_cycles, leftover_cycles
from micronpu.targets.neutron.costs import operation_cycles
from micronpu.targets.neutron.rules import check_node
from micronpu.targets.neutron.target_spec import NeutronTargetSpec

LANES = 8
"""Channels of which the published converters take multiples."""

_DEPTH = 3
_FLASH_BYTES_PER_CYCLE = 1  # an assumption of the order of an octal flash beside a core of 200 to 300 MHz


@dataclass(frozen=True)
class Cure:
    """Rewrites that make an operator fit.

    Attributes:
        name: of the rewrite; of all of them where one made something that needed another.
        nodes: what stands in the operator's stead.
        cycles: estimated cycles of the NPU, with those in which added constants come from flash.
    """

    name: str
    nodes: tuple[Node, ...]
    cycles: int


def cure(
    node: Node, target: NeutronTargetSpec, disabled: Collection[str] = (), core: Core | None = None
) -> Cure | None:
    """The cheapest rewrites after which every rule holds, if that is estimated to cost less than the host, or None.

    Args:
        core: what computes the operator in int8 if the NPU does not; None where the host does in float.
    """
    found = cheapest(node, target, disabled)
    if found is None:
        return None
    cycles = host_cycles(node) if core is None else leftover_cycles(node, core)
    return found if found.cycles / target.npu.clock_mhz < cycles / target.core_clock_mhz else None


def cheapest(node: Node, target: NeutronTargetSpec, disabled: Collection[str] = (), depth: int = _DEPTH) -> Cure | None:
    """The rewrites after which every rule holds that cost the fewest cycles, whatever the host costs.

    Args:
        depth: how many rewrites may work on what the one before made.
    """
    if depth == 0:
        return None
    best: Cure | None = None
    for rewrite in REWRITES:
        nodes = None if rewrite.name in disabled else rewrite.apply(node, LANES)
        known = {id(t.data) for t in node.inputs}
        found = _fitting(rewrite.name, nodes, known, target, disabled, depth) if nodes else None
        if found is not None and (best is None or found.cycles < best.cycles):
            best = found
    return best


def _fitting(
    name: str, nodes: list[Node], known: set[int], target: NeutronTargetSpec, disabled: Collection[str], depth: int
) -> Cure | None:
    """What a rewrite made, with those of its operators cured that need it, or None where one cannot be.

    Args:
        known: ids of the constants that were there before; any other has to come from flash as well.
    """
    names, fitting, cycles = {name: None}, [], 0
    for node in nodes:
        if not check_node(node, target):
            fitting.append(node)
            added = sum(t.type.bytes for t in node.inputs if t.is_constant and id(t.data) not in known)
            cycles += operation_cycles(node, target.npu) + added // _FLASH_BYTES_PER_CYCLE
            continue
        inner = cheapest(node, target, disabled, depth - 1)
        if inner is None:
            return None
        names |= dict.fromkeys(inner.name.split(" + "))
        fitting += inner.nodes
        cycles += inner.cycles
    return Cure(" + ".join(names), tuple(fitting), cycles)


def cure_graph(graph: Graph, target: NeutronTargetSpec, disabled: Collection[str] = ()) -> None:
    """Puts cures in the place of the operators that need one, in an imported graph."""
    nodes: list[Node] = []
    for node in graph.nodes:
        found = cure(node, target, disabled) if check_node(node, target) else None
        nodes += found.nodes if found is not None else [node]
    graph.nodes = nodes
