"""Order of axes of what the NPU and the core hand each other."""

from __future__ import annotations

from collections.abc import Sequence

from torch.fx import Node as FxNode

from micronpu.frontend.importer import import_nodes
from micronpu.frontend.program import ProgramView, is_dequantize, static_shape
from micronpu.ir.graph import Graph, Node
from micronpu.ir.op import Permutation
from micronpu.ops.movement import TO_CHANNELS_FIRST, TO_CHANNELS_LAST, Transpose
from micronpu.partition.partition import Group
from micronpu.passes import run_passes


def agree_on_images(view: ProgramView, groups: Sequence[Group]) -> None:
    """Chooses ``view.images``: what one group computes and others read, and one of them holds as [N, H, W, C] anyway.

    npu: conv2d -> transpose ─► core: transpose -> avg_pool2d        npu: conv2d ─► core: avg_pool2d

    A group that is given an image, and only moves the transpose to its end, is asked again.

    Args:
        groups: of the NPU and of the core.
    """
    view.images = set()
    computed = {n for g in groups for n in g.outputs}
    inside = {n for g in groups for n in g.nodes}

    def is_handed_over(node: FxNode) -> bool:
        shape = static_shape(node)
        readers_are_inside = all(is_dequantize(d) and inside.issuperset(d.users) for d in node.users)
        return node in computed and readers_are_inside and shape is not None and len(shape) == len(TO_CHANNELS_LAST)

    asked = list(groups)
    while asked:
        new = {n for g in asked for n in _held_as_images(view, g) if is_handed_over(n)} - view.images
        view.images |= new
        asked = [g for g in groups if not new.isdisjoint((*g.inputs, *g.outputs))]


def _held_as_images(view: ProgramView, group: Group) -> list[FxNode]:
    """Values at the border of a group that the group itself holds as [N, H, W, C]."""
    graph = import_nodes(view, group.nodes, list(group.inputs), list(group.outputs))
    taken = [n for i, n in enumerate(group.inputs) if i in graph.channels_last_inputs]
    run_passes(graph)
    return [*taken, *_turned(graph, group)]


def _turned(graph: Graph, group: Group) -> list[FxNode]:
    """Inputs that the graph first brings to [N, H, W, C], and outputs that it last brings back."""
    users, producer = graph.users(), graph.producers()
    found = [
        node
        for node, tensor in zip(group.inputs, graph.inputs, strict=True)
        if tensor in users and all(_is(reader, TO_CHANNELS_LAST) for reader in users[tensor])
    ]
    for node, tensor in zip(group.outputs, graph.outputs, strict=True):
        if tensor in producer and _is(producer[tensor], TO_CHANNELS_FIRST):
            found.append(node)
    return found


def _is(node: Node, permutation: Permutation) -> bool:
    return isinstance(node.op, Transpose) and node.op.permutation == permutation
