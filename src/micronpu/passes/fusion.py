"""Passes that fuse operators, and that remove operators without effect."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from micronpu.ir.graph import Node, Tensor
from micronpu.ir.op import Op, Permutation
from micronpu.ir.window import NO_PADDING, Activation, Padding2d
from micronpu.ops.clamps import Clamp, Relu
from micronpu.ops.convolution import Conv2d, DepthwiseConv2d
from micronpu.ops.elementwise import Add, Mul, Sub
from micronpu.ops.matmul import FullyConnected
from micronpu.ops.movement import Pad, Reshape, Transpose
from micronpu.ops.pooling import AvgPool2d, MaxPool2d
from micronpu.ops.quantization import Requantize
from micronpu.ops.resize import ResizeBilinear, ResizeNearest
from micronpu.ops.slicing import Concat
from micronpu.passes.base import MergePairs, NodePass, Walk

_FUSING = (Conv2d, DepthwiseConv2d, FullyConnected, Add, Mul, Sub)


class ActivationBeforeConcat(NodePass):
    """Moves the clamp of a concatenation to its parts, where `fuse_activations` fuses it.

    conv2d -> a ─┐                          conv2d -> relu -> a ─┐
    conv2d -> b ─┴─ concat -> relu -> y     conv2d -> relu -> b ─┴─ concat -> y

    Applied if at most one part keeps a separate clamp: the number of operators never grows, and fewer elements are
        clamped. A part whose operator has the same clamp already needs none.
    """

    name = "activation_before_concat"

    def visit(self, node: Node, walk: Walk) -> None:
        concat = self._concat_before(walk, node)
        if concat is None or not isinstance(node.op, Relu):
            return
        activations = [self._activation(walk.producer.get(t)) for t in concat.inputs]
        clamped = [a is node.op.kind for a in activations]
        fuse = [
            a is Activation.NONE and walk.users.get(t) == [concat] and t not in walk.outputs
            for t, a in zip(concat.inputs, activations, strict=True)
        ]
        if not any(fuse) or sum(not (c or f) for c, f in zip(clamped, fuse, strict=True)) > 1:
            return
        made: dict[Tensor, Tensor] = {}
        for part, done in zip(concat.inputs, clamped, strict=True):
            if part not in made:
                clamp = None if done else self.make(node.op, [part], node.origin, part.type.qparams)
                made[part] = part if clamp is None else walk.insert(clamp)
        origin = concat.origin.joined(node.origin)
        walk.replace(node.output, walk.insert(self.make(concat.op, [made[t] for t in concat.inputs], origin)))

    @staticmethod
    def _concat_before(walk: Walk, node: Node) -> Node | None:
        """Return the concatenation that only this clamp reads; None if the node is not such a clamp."""
        if not isinstance(node.op, Relu) or not node.op.kind.can_fuse or node.inputs[0].type != node.output.type:
            return None
        concat = walk.producer.get(node.inputs[0])
        is_one = concat is not None and isinstance(concat.op, Concat) and walk.read_once(concat.output)
        return concat if is_one else None

    @staticmethod
    def _activation(producer: Node | None) -> Activation | None:
        """Return the fused clamp of an operator, or None if it cannot have one."""
        if producer is None or not isinstance(producer.op, _FUSING):
            return None
        return producer.op.activation


class FuseActivations(NodePass):
    """Fuses a clamp with its operand's qparams into the preceding operator.

    x -> conv2d -> relu (same scale and zero point) -> y        x -> conv2d{activation=relu} -> y
    """

    name = "fuse_activations"

    def visit(self, node: Node, walk: Walk) -> None:
        first = walk.producer.get(node.inputs[0])
        if not isinstance(node.op, Relu) or not node.op.kind.can_fuse or first is None:
            return
        op = first.op
        if (
            isinstance(op, _FUSING)
            and op.activation is Activation.NONE
            and node.inputs[0].type == node.output.type
            and walk.read_once(first.output)
        ):
            first.op = replace(op, activation=node.op.kind)
            first.origin = first.origin.joined(node.origin).through(self.name)
            walk.replace(node.output, first.output)


class FoldPads(NodePass):
    """Fuses padding with zeros into the window operator that follows, if that operator also pads with zeros.

    x -> pad(h 0/1, w 0/1) -> conv2d{stride=2} -> y        x -> conv2d{stride=2, padding=(0,1,0,1)} -> y
    x -> pad -> transpose -> conv2d -> y                   x -> transpose -> conv2d{padding} -> y
    """

    name = "fold_pads"

    def visit(self, node: Node, walk: Walk) -> None:
        while self._fold(node, walk):
            walk.changed = True

    def _fold(self, node: Node, walk: Walk) -> bool:
        before, order = walk.producer.get(node.inputs[0]), None
        if before is not None and isinstance(before.op, Transpose):
            order = before.op.permutation
            before = walk.producer.get(before.inputs[0])
        if before is None or not isinstance(before.op, Pad):
            return False
        x = before.inputs[0]
        op = self._with_padding(node.op, before.op, x, order)
        if op is None:
            return False
        if order is not None:
            x = walk.insert(self.make(Transpose(order), [x], node.origin))
        node.op, node.inputs = op, [x, *node.inputs[1:]]
        node.origin = node.origin.joined(before.origin).through(self.name)
        return True

    @staticmethod
    def _with_padding(op: Op, pad: Pad, x: Tensor, order: Permutation | None) -> Op | None:
        """Return the window operator with the padding, or None if it cannot have it."""
        if not isinstance(op, (Conv2d, DepthwiseConv2d, AvgPool2d)) or pad.integer(x.type) != x.type.zero_point:
            return None
        if isinstance(op, AvgPool2d) and op.padding and not op.count_padding:
            return None
        before, after = ([side[i] for i in order or range(4)] for side in (pad.before, pad.after))
        if any((before[0], after[0], before[3], after[3])):
            return None
        padding = op.padding + Padding2d(before[1], after[1], before[2], after[2])
        if isinstance(op, AvgPool2d):
            return replace(op, padding=padding, count_padding=True)
        return replace(op, padding=padding)


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
            return pool.kernel == (1, 1) and pool.stride == (1, 1) and pool.padding == NO_PADDING
        case Concat():
            return len(node.inputs) == 1
        case Relu(kind=kind):
            return kind.limits(node.output.type) == node.output.type.dtype.limits
        case Clamp() as clamp:
            return clamp.integer_limits(node.output.type) == node.output.type.dtype.limits
    return False


class RemoveNoOps(NodePass):
    """Removes operators that return their operand.

    x -> reshape(same shape) -> y        y = x
    x -> requantize(same qparams) -> y
    x -> relu of values that are all positive in its qparams -> y
    x -> pad(nothing), pool 1x1, concat of one, identity transpose, resize to the same size -> y
    x -> add 0, sub 0, mul 1 with the same qparams -> y
    """

    name = "remove_no_ops"

    def visit(self, node: Node, walk: Walk) -> None:
        operand = returned_operand(node)
        if operand is not None:
            walk.replace(node.output, operand)


class MergeReshapes(MergePairs):
    """Replaces two consecutive reshapes by one; the first one stays if it has other readers.

    x -> reshape(a) -> reshape(b) -> y        x -> reshape(b) -> y
    """

    name = "merge_reshapes"

    kind = Reshape

    def merged(self, first: Reshape, second: Reshape) -> Reshape:
        return second
