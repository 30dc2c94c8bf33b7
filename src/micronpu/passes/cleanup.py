"""Passes that remove operators without effect."""

from __future__ import annotations

import numpy as np

from micronpu.ir.graph import Graph, Node, Tensor
from micronpu.ir.window import Padding2d
from micronpu.ops.clamps import Clamp, Relu
from micronpu.ops.concat import Concat
from micronpu.ops.elementwise import Add, Mul, Sub
from micronpu.ops.movement import Pad, Reshape, Transpose
from micronpu.ops.pooling import AvgPool2d, MaxPool2d
from micronpu.ops.quantization import Requantize
from micronpu.ops.resize import ResizeBilinear, ResizeNearest
from micronpu.passes.base import MergePairs, Pass, Walk


def returned_operand(node: Node) -> Tensor | None:
    """Return the operand that an operator returns unchanged for any elements; None if it computes something."""
    kept = [t for t in node.inputs if t.type == node.output.type and not t.is_constant]
    if not kept:
        return None
    x = kept[0]
    match node.op:
        case Add() | Sub() | Mul() as op:
            first, second = node.inputs
            neutral = 1.0 if isinstance(op, Mul) else 0.0
            other = second if x is first else first
            plain = op.activation.limits(node.output.type) == node.output.type.dtype.limits
            if not plain or not _is_everywhere(other, neutral) or (isinstance(op, Sub) and x is second):
                return None
            return x
        case ResizeNearest() | ResizeBilinear():
            return x
    return x if x is node.inputs[0] and _does_nothing(node) else None


def _is_everywhere(constant: Tensor, value: float) -> bool:
    """True if every element of a constant equals a number exactly."""
    qparams = constant.type.qparams
    if constant.data is None or qparams is None or not qparams.is_per_tensor:
        return False
    return bool(
        (np.float64(qparams.scale[0]) * (constant.data.astype(np.int64) - qparams.zero_point[0]) == value).all()
    )


def _does_nothing(node: Node) -> bool:
    """True if an operator whose first operand and result have the same type returns its operand."""
    match node.op:
        case Reshape() | Requantize():
            return True
        case Transpose(permutation=p):
            return p == tuple(range(len(p)))
        case Pad(before=before, after=after):
            return not any((*before, *after))
        case AvgPool2d() | MaxPool2d() as pool:
            return pool.kernel == (1, 1) and pool.stride == (1, 1) and pool.padding == Padding2d.none()
        case Concat():
            return len(node.inputs) == 1
        case Relu(kind=kind):
            return kind.limits(node.output.type) == node.output.type.dtype.limits
        case Clamp() as clamp:
            return clamp.integer_limits(node.output.type) == node.output.type.dtype.limits
    return False


class RemoveNoOps(Pass):
    """Removes operators that return their operand.

    x -> reshape(same shape) -> y        y = x
    x -> requantize(same qparams) -> y
    x -> relu of values that are all positive in its qparams -> y
    x -> pad(nothing), pool 1x1, concat of one, identity transpose, resize to the same size -> y
    x -> add 0, sub 0, mul 1 with the same qparams -> y
    """

    name = "remove_no_ops"

    def run(self, graph: Graph) -> bool:
        walk = Walk(graph)
        for node in walk:
            operand = returned_operand(node)
            if operand is not None:
                walk.replace(node.output, operand)
        return walk.changed


class MergeReshapes(MergePairs):
    """Replaces two consecutive reshapes by one; the first one stays if it has other readers.

    x -> reshape(a) -> reshape(b) -> y        x -> reshape(b) -> y
    """

    name = "merge_reshapes"

    kind = Reshape

    def merged(self, first: Reshape, second: Reshape) -> Reshape:
        return second
