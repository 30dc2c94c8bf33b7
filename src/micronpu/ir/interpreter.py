"""The reference interpreter: runs a graph by the operators' own definitions.

Slow and simple on purpose: faster implementations are tested against it, element by element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from micronpu.base.arrays import Array
from micronpu.base.errors import InternalError, ModelError
from micronpu.base.texts import plural
from micronpu.ir.graph import Graph, Node, Tensor
from micronpu.ir.op import Value


def interpret(
    graph: Graph, inputs: Sequence[Array], *, observe: Callable[[Node, Array], Array | None] | None = None
) -> list[Array]:
    """Computes the outputs of a graph.

    Args:
        inputs: one array per graph input, of its shape and integer type.
        observe: called with every node and its result; an array that it returns replaces the result.

    Raises:
        ModelError: number, type or shape of the inputs is wrong.
    """
    if len(inputs) != len(graph.inputs):
        what = f"The graph has {plural(len(graph.inputs), 'input')}, but got {len(inputs)}."
        raise ModelError(what, hint="one array for each input, in order")
    values: dict[Tensor, Array] = {}
    for tensor, array in zip(graph.inputs, inputs, strict=True):
        if array.shape != tensor.shape or array.dtype != tensor.type.dtype.numpy:
            what = f"Input {tensor.name} is {tensor.type}, got {array.dtype}{list(array.shape)}."
            raise ModelError(what, hint="an array of that type and shape")
        values[tensor] = array

    def value(tensor: Tensor) -> Value:
        data = tensor.data if tensor.data is not None else values[tensor]
        return Value(data, tensor.type)

    for node in graph.nodes:
        result = node.op.reference(node.output.type, *(value(t) for t in node.inputs))
        if result.shape != node.output.shape or result.dtype != node.output.type.dtype.numpy:
            raise InternalError(f"{node.op} made {result.dtype}{list(result.shape)} instead of {node.output.type}.")
        other = observe(node, result) if observe is not None else None
        values[node.output] = result if other is None else other
    return [np.asarray(value(t).data) for t in graph.outputs]
