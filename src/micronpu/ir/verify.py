"""Invariants of a graph at each stage; the tests check them after every pass."""

from __future__ import annotations

from enum import Enum

from micronpu.base.errors import InternalError
from micronpu.ir.graph import Graph, Node, Tensor
from micronpu.ir.op import OutputQuantization
from micronpu.ir.types import DType
from micronpu.ir.window import litert_padding


class Stage(Enum):
    """Stages of a graph, in order; each allows less than the previous one."""

    IMPORTED = "imported"
    LITERT = "litert"


def verify(graph: Graph, stage: Stage = Stage.IMPORTED) -> None:
    """Raise `InternalError` with the offending node if the graph is not legal at ``stage``.

    Every stage: nodes are in execution order, each tensor has one producer, results have the type that the operator
    infers, activations are quantized per tensor, and tensors that must share parameters do.
    LITERT: paddings are expressible in LiteRT, no node is unused, and no tensor is output twice.
    """
    defined: set[Tensor] = set()
    for tensor in graph.inputs:
        if tensor.is_constant:
            raise InternalError(f"Graph input {tensor.name} is a constant.")
        if tensor in defined:
            raise InternalError(f"{tensor.name} is an input of the graph twice.")
        defined.add(tensor)
    for node in graph.nodes:
        for tensor in node.inputs:
            if not tensor.is_constant and tensor not in defined:
                raise InternalError(f"`{node}` reads {tensor} before it is computed.")
        _verify_types(node)
        for tensor in node.outputs:
            if tensor in defined:
                raise InternalError(f"`{node}` computes {tensor}, which exists already.")
            defined.add(tensor)
    for tensor in graph.outputs:
        if not tensor.is_constant and tensor not in defined:
            raise InternalError(f"Graph output {tensor} is never computed.")
    if stage is Stage.LITERT:
        _verify_litert(graph)


def _verify_types(node: Node) -> None:
    expected = node.op.infer(*node.input_types)
    result = node.output.type
    if (expected.shape, expected.dtype) != (result.shape, result.dtype):
        raise InternalError(f"`{node}` makes {expected}, but its result is declared {result}.")
    if expected.qparams is not None and expected.qparams != result.qparams:
        raise InternalError(f"`{node}` dictates {expected.qparams}, but its result is declared {result.qparams}.")
    if result.dtype in (DType.INT8, DType.INT16) and (result.qparams is None or not result.qparams.is_per_tensor):
        raise InternalError(f"`{node}` has a result without parameters per tensor: {result}.")
    rule = node.op.quantization
    if rule.output is OutputQuantization.SHARED and rule.activations == ("tensors",):
        different = [t.type for t in node.inputs if t.type.qparams != result.qparams]
        if different:
            raise InternalError(f"`{node}` joins {different[0]} into {result}, which has other qparams.")


def _verify_litert(graph: Graph) -> None:
    read = {t for node in graph.nodes for t in node.inputs} | set(graph.outputs)
    own = {t for node in graph.nodes for t in node.outputs}
    for tensor in graph.outputs:
        if tensor not in own:
            raise InternalError(f"Graph output {tensor} is an input, a constant, or an output twice.")
        own.remove(tensor)
    for node in graph.nodes:
        if not any(t in read for t in node.outputs):
            raise InternalError(f"No operator reads the result of `{node}`.")
        padding = getattr(node.op, "padding", None)
        if padding is None:
            continue
        kernel = node.op.kernel(node.inputs[1].type) if len(node.inputs) > 1 else node.op.kernel  # type: ignore[attr-defined]
        dilation = getattr(node.op, "dilation", (1, 1))
        stride = node.op.stride  # type: ignore[attr-defined]
        if litert_padding(node.inputs[0].shape[1:3], kernel, stride, padding, dilation) is None:
            raise InternalError(f"`{node}` has a padding that LiteRT cannot express.")
