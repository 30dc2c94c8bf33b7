"""Which rewrite makes an operator fit for a Neutron, and whether it is worth it."""

from __future__ import annotations

from dataclasses import dataclass

from micronpu.estimate.host import host_cycles
from micronpu.estimate.neutron import operation_cycles
from micronpu.ir.graph import Graph, Node
from micronpu.neutron.devices import NeutronTargetSpec
from micronpu.neutron.rules import check_node
from micronpu.passes.rewrites import REWRITES

LANES = 8
"""Channels of which the published converters take multiples."""


@dataclass(frozen=True)
class Cure:
    """A rewrite that makes an operator fit.

    Attributes:
        name: of the rewrite.
        nodes: what stands in the operator's stead.
    """

    name: str
    nodes: tuple[Node, ...]


def cure(node: Node, target: NeutronTargetSpec, disabled: tuple[str, ...] = ()) -> Cure | None:
    """The first rewrite after which every rule holds and that is estimated to cost less than the host, or None."""
    for rewrite in REWRITES:
        nodes = None if rewrite.name in disabled else rewrite.apply(node, LANES)
        if not nodes or any(check_node(n, target) for n in nodes):
            continue
        seconds = sum(operation_cycles(n, target.npu) for n in nodes) / target.npu.clock_mhz
        if seconds < host_cycles(node) / target.core_clock_mhz:
            return Cure(rewrite.name, tuple(nodes))
    return None


def cure_graph(graph: Graph, target: NeutronTargetSpec, disabled: tuple[str, ...] = ()) -> None:
    """Puts cures in the place of the operators that need one, in an imported graph."""
    nodes: list[Node] = []
    for node in graph.nodes:
        found = cure(node, target, disabled) if check_node(node, target) else None
        nodes += found.nodes if found is not None else [node]
    graph.nodes = nodes
