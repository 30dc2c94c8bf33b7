"""Memory that activations need, from the lifetimes of tensors."""

from __future__ import annotations

from micronpu.ir.graph import Graph, Tensor


def peak_activation_bytes(graph: Graph) -> int:
    """Bytes of all tensors that are alive at once, at the worst moment, in the graph's execution order.

    A lower bound for any allocator that neither reorders nor tiles: it assumes that tensors pack without gaps and that
    no result overlaps its operand.
    """
    last: dict[Tensor, int] = {}
    for position, node in enumerate(graph.nodes):
        for tensor in node.inputs:
            last[tensor] = position
    for tensor in graph.outputs:
        last[tensor] = len(graph.nodes)
    alive = {t for t in graph.inputs if not t.is_constant}
    peak = sum(t.type.bytes for t in alive)
    for position, node in enumerate(graph.nodes):
        alive.update(node.outputs)
        peak = max(peak, sum(t.type.bytes for t in alive))
        alive = {t for t in alive if last.get(t, -1) > position}
    return peak
