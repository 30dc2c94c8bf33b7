"""What the policies choose for graphs that tests make themselves."""

from __future__ import annotations

from dataclasses import replace

from micronpu.chips.core import Core
from micronpu.ir.graph import Graph, Node
from micronpu.partition.partition import Decide
from micronpu.passes.rewrite import Choice, rewritten
from micronpu.targets.neutron.costs import decide_for
from micronpu.targets.neutron.options import NeutronOptions

PUBLISHED = NeutronOptions(silicon="imxrt700", converter_flavor="SDK_25_12")
LATEST = NeutronOptions(silicon="imxrt700")


def without(options: NeutronOptions, *names: str) -> NeutronOptions:
    """The options with rewrites left out."""
    return replace(options, disabled_passes=names)


def chosen(decide: Decide, node: Node) -> Choice | None:
    """What computes the node instead; None where it stays, or is refused."""
    answer = decide(node)
    return answer if isinstance(answer, Choice) and answer.rewrites else None


def neutron_choice(node: Node, options: NeutronOptions, core: Core | None = None) -> Choice | None:
    return chosen(decide_for(options, core), node)


def rewrite_graph(graph: Graph, decide: Decide) -> Graph:
    """The graph with what was chosen in the place of its nodes; it is changed in place."""
    rewritten(graph, lambda node: chosen(decide, node))
    return graph


def neutron_graph(graph: Graph, options: NeutronOptions) -> Graph:
    return rewrite_graph(graph.clone(), decide_for(options))
