"""Order of axes of values between NPU and core."""

from __future__ import annotations

from collections.abc import Sequence

from torch.fx import Node as FxNode

from micronpu.frontend.program import is_dequantize, static_shape
from micronpu.ir.graph import Node
from micronpu.ir.op import Permutation
from micronpu.ops.movement import TO_CHANNELS_FIRST, TO_CHANNELS_LAST, Transpose
from micronpu.partition.partition import Partition


def agree_on_images(partitions: Sequence[Partition]) -> None:
    """Choose values between partitions that are passed as [N, H, W, C] because one of the partitions has them in this
    order.

        npu: conv2d -> transpose ─► core: transpose -> avg_pool2d        npu: conv2d ─► core: avg_pool2d

    If a partition receives an image and then only transposes it at its end, its own results are checked again.

    Args:
        partitions: of the NPU and of the core.
    """
    images: set[FxNode] = set()
    computed = {n for p in partitions for n in p.outputs}
    inside = {n for p in partitions for n in p.nodes}

    def is_handed_over(node: FxNode) -> bool:
        shape = static_shape(node)
        readers_are_inside = all(is_dequantize(d) and inside.issuperset(d.users) for d in node.users)
        return node in computed and readers_are_inside and shape is not None and len(shape) == len(TO_CHANNELS_LAST)

    asked = list(partitions)
    while asked:
        images |= {n for p in asked for n in _held_as_images(p) if is_handed_over(n)}
        asked = [p for p in partitions if p.hand_over(images)]


def _held_as_images(partition: Partition) -> list[FxNode]:
    """Return inputs and outputs that the partition itself has as [N, H, W, C], or transposes to that order and back."""
    graph = partition.graph
    users, producer = graph.users(), graph.producers()
    found = [n for i, n in enumerate(partition.inputs) if i in graph.channels_last_inputs]
    found += [
        node
        for node, tensor in zip(partition.inputs, graph.inputs, strict=True)
        if tensor in users and all(_is(reader, TO_CHANNELS_LAST) for reader in users[tensor])
    ]
    for node, tensor in zip(partition.outputs, graph.outputs, strict=True):
        if tensor in producer and _is(producer[tensor], TO_CHANNELS_FIRST):
            found.append(node)
    return found


def _is(node: Node, permutation: Permutation) -> bool:
    return isinstance(node.op, Transpose) and node.op.permutation == permutation
