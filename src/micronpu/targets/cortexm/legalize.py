"""Rewrites to the forms that CMSIS-NN has kernels for.

The rewritten graph is the definition of what the core computes: `micronpu.ir.interpreter` gives its result bit for bit.
Three rewrites round differently from the operator that they replace, each by at most one step of the result's grid:
a fully connected layer (LiteRT's reference rounds once, CMSIS-NN twice), a mean (the zero point is part of CMSIS-NN's
sum), and a difference (a tie of the second operand is rounded the other way).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from micronpu.ir.graph import Graph, Node, Tensor
from micronpu.ir.op import Op
from micronpu.ir.types import QParams, TensorType
from micronpu.ir.window import NO_PADDING, Activation
from micronpu.ops.activation import Relu
from micronpu.ops.adaptive import by_parts, clipped_windows
from micronpu.ops.convolution import Conv2d, DepthwiseConv2d
from micronpu.ops.elementwise import Add, Mul, Sub
from micronpu.ops.linear import FullyConnected
from micronpu.ops.movement import Pad, Reshape, Transpose
from micronpu.ops.pooling import AvgPool2d, MaxPool2d
from micronpu.ops.reduction import Mean
from micronpu.ops.slicing import Slice
from micronpu.ops.transposed import TransposeConv2d
from micronpu.ops.unary import Neg
from micronpu.passes import run_passes
from micronpu.passes.base import Pass, Walk
from micronpu.passes.fusion import FoldPads
from micronpu.targets.cortexm.table import is_table


def legalize(graph: Graph, disabled: Sequence[str] = ()) -> Graph:
    """Simplifies an imported graph and brings it to the forms of the core, in place; returns it.

    Args:
        disabled: names of passes to leave out; what the kernels need cannot be left out.
    """
    run_passes(graph, disabled=disabled)
    FoldPads().run(graph)  # what LiteRT has no word for, CMSIS-NN takes along where both sides are padded alike
    graph.remove_dead()
    CoreForms().run(graph)
    graph.remove_dead()
    graph.rename()
    return graph


class CoreForms(Pass):
    """Operators without a kernel of their own become operators that have one.

    fully_connected(x, w [O, I])     reshape [R,1,1,I] -> conv2d(w [O,1,1,I]) -> reshape
    mean(x) over axes                reshape [N,R,1,C] -> avg_pool2d{Rx1} -> reshape
    sub(x, z)                        neg(z) on the mirrored grid -> add(x, -z)
    mul{relu}                        mul -> relu
    conv2d{padding 0,1,0,1}          pad -> conv2d
    transpose_conv2d{crop 0,1,0,1}   transpose_conv2d -> slice
    avg_pool2d{padding 0,1,0,1}      avg_pool2d of the inside and of the border, joined
    """

    name = "core_forms"

    def run(self, graph: Graph) -> bool:
        walk = Walk(graph)
        for node in walk:
            rewrite = None if is_table(node) else REWRITES.get(type(node.op))
            result = rewrite(_Site(self, walk, node)) if rewrite is not None else None
            if result is not None:
                walk.replace(node.output, result)
        return walk.changed


class _Site:
    """Where a rewrite is applied: the node, and how to put others in its place."""

    def __init__(self, step: Pass, walk: Walk, node: Node) -> None:
        self._step, self._walk, self.node = step, walk, node
        self.op: Any = node.op
        self.inputs, self.output = node.inputs, node.output

    def emit(self, op: Op, *inputs: Tensor, qparams: QParams | None = None) -> Tensor:
        made = self._step.make(op, list(inputs), self.node.origin, qparams or self.output.type.qparams)
        return self._walk.insert(made)

    def reshape(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        return x if x.shape == shape else self.emit(Reshape(shape), x)


def _fully_connected(site: _Site) -> Tensor:
    x, weight, bias = site.inputs
    outputs, inputs = weight.shape
    rows = site.reshape(x, (x.type.size // inputs, 1, 1, inputs))
    assert weight.data is not None
    shape = (outputs, 1, 1, inputs)
    kernel = Tensor(weight.name, weight.type.with_shape(shape), weight.data.reshape(shape))
    return site.reshape(site.emit(Conv2d(activation=site.op.activation), rows, kernel, bias), site.output.shape)


def _mean(site: _Site) -> Tensor:
    (x,) = site.inputs
    axes = sorted(site.op.axes)
    if not axes:
        return site.reshape(x, site.output.shape)
    if axes != list(range(axes[0], axes[-1] + 1)):
        others = [i for i in range(x.type.rank) if i not in axes]
        x = site.emit(Transpose((*others, *axes)), x)
        axes = list(range(len(others), x.type.rank))
    before, count, after = (
        math.prod(part) for part in (x.shape[: axes[0]], x.shape[axes[0] : axes[-1] + 1], x.shape[axes[-1] + 1 :])
    )
    rows = site.reshape(x, (before, count, 1, after))
    return site.reshape(site.emit(AvgPool2d((count, 1), (count, 1)), rows), site.output.shape)


def mirrored(type: TensorType) -> QParams:
    """The grid on which -x is the integers of x with all bits flipped."""
    return QParams.per_tensor(type.scale, -1 - type.zero_point)


def _sub(site: _Site) -> Tensor:
    x, z = site.inputs
    if z.data is None:
        opposite = site.emit(Neg(), z, qparams=mirrored(z.type))
    else:
        opposite = Tensor(z.name, z.type.with_qparams(mirrored(z.type)), ~z.data)
    return site.emit(Add(site.op.activation), x, opposite)


def _mul(site: _Site) -> Tensor | None:
    if site.op.activation is Activation.NONE:
        return None
    return site.emit(Relu(site.op.activation), site.emit(Mul(), *site.inputs))


def _unequal_padding(site: _Site) -> Tensor | None:
    p = site.op.padding
    if p.top == p.bottom and p.left == p.right:
        return None
    value = -math.inf if isinstance(site.op, MaxPool2d) else 0.0
    padded = site.emit(Pad((0, p.top, p.left, 0), (0, p.bottom, p.right, 0), value), site.inputs[0])
    return site.emit(replace(site.op, padding=NO_PADDING), padded, *site.inputs[1:])


def _average(site: _Site) -> Tensor | None:
    op, (x,) = site.op, site.inputs
    p = op.padding
    if op.count_padding and p:
        return _unpadded_average(site)
    if p.top == p.bottom and p.left == p.right:
        return None
    rows, columns = (
        clipped_windows(n, k, s, sides)
        for n, k, s, sides in zip(x.shape[1:3], op.kernel, op.stride, (p.rows, p.columns), strict=True)
    )
    return by_parts(site.emit, x, rows, columns, AvgPool2d)


def _unpadded_average(site: _Site) -> Tensor:
    p = site.op.padding
    padded = site.emit(Pad((0, p.top, p.left, 0), (0, p.bottom, p.right, 0)), site.inputs[0])
    return site.emit(replace(site.op, padding=NO_PADDING, count_padding=False), padded)


def _transposed_convolution(site: _Site) -> Tensor | None:
    crop = site.op.crop
    if crop.top == crop.bottom and crop.left == crop.right:
        return None
    full = site.emit(replace(site.op, crop=NO_PADDING), *site.inputs)
    return site.emit(Slice((0, crop.top, crop.left, 0), site.output.shape), full)


REWRITES: dict[type[Op], Any] = {
    FullyConnected: _fully_connected,
    Mean: _mean,
    Sub: _sub,
    Mul: _mul,
    Conv2d: _unequal_padding,
    DepthwiseConv2d: _unequal_padding,
    MaxPool2d: _unequal_padding,
    AvgPool2d: _average,
    TransposeConv2d: _transposed_convolution,
}
