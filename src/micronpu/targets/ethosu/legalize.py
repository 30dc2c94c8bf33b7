"""The final form of a graph for an Ethos-U, before it is decided how Vela is asked."""

from __future__ import annotations

from micronpu.ir.graph import Graph, Node
from micronpu.ops.convolution import Conv2d
from micronpu.ops.linear import FullyConnected
from micronpu.ops.padding import ReflectPad
from micronpu.ops.reduction import Amax, Amin, Mean
from micronpu.ops.slicing import Slice
from micronpu.passes import run_passes
from micronpu.passes.choose import Choice, choose, no_cost, rewritten
from micronpu.targets.ethosu.options import EthosUCompileSpec
from micronpu.targets.ethosu.rewrites import TO_BE_SOUND, TO_SPARE
from micronpu.targets.ethosu.rewrites_sound import pool_of_mean
from micronpu.targets.ethosu.rewrites_spare import DENSE_RANK, LARGEST_STRIDE


def legalize(graph: Graph, spec: EthosUCompileSpec) -> Graph:
    """Simplifies a graph and rewrites what Vela takes but had better not see, in place; returns it."""
    run_passes(graph, disabled=spec.disabled_graph_passes)
    if rewritten(graph, lambda node: choose_sound(node, spec)):
        graph.rename()
    return graph


def choose_sound(node: Node, spec: EthosUCompileSpec) -> Choice | None:
    """What Vela has no trouble with and compiles to what the node says; None where there is nothing."""
    return choose(node, _is_sound, no_cost, (*TO_BE_SOUND, *TO_SPARE), disabled=spec.disabled_node_rewrites)


def _is_sound(node: Node) -> bool:
    """Whether Vela has no trouble with the operator, and its command stream computes it."""
    if isinstance(node.op, (FullyConnected, Amax, Amin, ReflectPad)):
        return False
    if isinstance(node.op, Mean):
        return pool_of_mean(node) is None
    if isinstance(node.op, Slice):
        return node.inputs[0].type.rank <= DENSE_RANK
    return not isinstance(node.op, Conv2d) or max(node.op.stride) <= LARGEST_STRIDE
