"""Graphs for the tests of passes, made as import makes them: the program's NCHW order, transposes round each window."""

from __future__ import annotations

import re
from textwrap import dedent

import numpy as np

from micronpu.ir import DType, Graph, GraphBuilder, QParams, Tensor, TensorType, interpret, verify
from micronpu.ir.window import Activation, Padding2d
from micronpu.ops.activation import Sigmoid
from micronpu.ops.clamps import Clamp, Relu
from micronpu.ops.convolution import Conv2d, DepthwiseConv2d
from micronpu.ops.elementwise import Add, Maximum
from micronpu.ops.matmul import FullyConnected
from micronpu.ops.movement import TO_CHANNELS_FIRST, TO_CHANNELS_LAST, Pad, Reshape, Transpose
from micronpu.ops.pooling import AvgPool2d, MaxPool2d
from micronpu.ops.quantization import Requantize
from micronpu.ops.reduction import Mean
from micronpu.ops.slicing import Concat
from micronpu.ops.softmax import Softmax
from micronpu.passes import Pass, run_passes
from micronpu.passes.base import Walk

FIRST, LAST = TO_CHANNELS_FIRST, TO_CHANNELS_LAST


def i8(*shape: int, scale: float = 0.05, zero: int = 3) -> TensorType:
    return TensorType(shape, DType.INT8, QParams.per_tensor(scale, zero))


def q(scale: float, zero: int = 0) -> QParams:
    return QParams.per_tensor(scale, zero)


class Net:
    """A graph under construction; every method appends one operator of the program."""

    def __init__(self) -> None:
        self.builder = GraphBuilder()
        self.random = np.random.default_rng(0)

    def input(self, *shape: int, scale: float = 0.05, zero: int = 3) -> Tensor:
        return self.builder.input(i8(*shape, scale=scale, zero=zero))

    def constant(self, *shape: int, scale: float = 0.05, zero: int = 3) -> Tensor:
        return self.builder.constant(self.random.integers(-128, 128, shape), i8(*shape, scale=scale, zero=zero))

    def weights(self, *shape: int, axis: int = 0) -> Tensor:
        scales = [0.01 + 0.002 * i for i in range(shape[axis])]
        type = TensorType(shape, DType.INT8, QParams.per_channel(scales, axis))
        return self.builder.constant(self.random.integers(-127, 128, shape), type)

    def bias(self, x: Tensor, weight: Tensor) -> Tensor:
        assert weight.type.qparams is not None
        scales = [x.type.scale * s for s in weight.type.qparams.scale]
        type = TensorType((len(scales),), DType.INT32, QParams.per_channel(scales, 0))
        return self.builder.constant(self.random.integers(-900, 900, len(scales)), type)

    def transpose(self, x: Tensor, *permutation: int) -> Tensor:
        return self.builder.emit(Transpose(permutation), x)

    def last(self, x: Tensor) -> Tensor:
        return self.transpose(x, *LAST)

    def first(self, x: Tensor) -> Tensor:
        return self.transpose(x, *FIRST)

    def conv(
        self,
        x: Tensor,
        channels: int,
        kernel: int = 1,
        stride: int = 1,
        padding: Padding2d | None = None,
        weight: Tensor | None = None,
        out: QParams | None = None,
    ) -> Tensor:
        """x [N, C, H, W] -> [N, O, H', W']; SAME unless a padding is given."""
        padding = Padding2d.same(x.shape[2:], (kernel, kernel), (stride, stride)) if padding is None else padding
        weight = weight or self.weights(channels, kernel, kernel, x.shape[1])
        op = Conv2d((stride, stride), padding)
        y = self.builder.emit(op, self.last(x), weight, self.bias(x, weight), qparams=out or q(0.07, -5))
        return self.first(y)

    def depthwise(self, x: Tensor, kernel: int = 3) -> Tensor:
        weight = self.weights(1, kernel, kernel, x.shape[1], axis=3)
        op = DepthwiseConv2d((1, 1), Padding2d.same(x.shape[2:], (kernel, kernel), (1, 1)))
        return self.first(self.builder.emit(op, self.last(x), weight, self.bias(x, weight), qparams=q(0.06, 2)))

    def linear(self, x: Tensor, features: int, weight: Tensor | None = None) -> Tensor:
        weight = weight or self.weights(features, x.shape[-1])
        return self.builder.emit(FullyConnected(), x, weight, self.bias(x, weight), qparams=q(0.09, 1))

    def relu(self, x: Tensor, out: QParams | None = None, kind: Activation = Activation.RELU) -> Tensor:
        """On the grid of x unless another one is given."""
        return self.builder.emit(Relu(kind), x, qparams=out or x.type.qparams)

    def clamp(self, x: Tensor, low: float | None, high: float | None) -> Tensor:
        return self.builder.emit(Clamp(low, high), x)

    def sigmoid(self, x: Tensor) -> Tensor:
        return self.builder.emit(Sigmoid(), x)

    def softmax(self, x: Tensor) -> Tensor:
        return self.builder.emit(Softmax(), x)

    def requantize(self, x: Tensor, out: QParams) -> Tensor:
        return x if x.type.qparams == out else self.builder.emit(Requantize(), x, qparams=out)

    def add(self, x: Tensor, z: Tensor, out: QParams | None = None) -> Tensor:
        return self.builder.emit(Add(), x, z, qparams=out or q(0.11, -4))

    def concat(self, axis: int, *tensors: Tensor) -> Tensor:
        qparams = tensors[0].type.qparams
        assert qparams is not None
        return self.builder.emit(Concat(axis), *(self.requantize(t, qparams) for t in tensors))

    def mean(self, x: Tensor, *axes: int, keep: bool = False) -> Tensor:
        return self.builder.emit(Mean(axes, keep), x)

    def pad(self, x: Tensor, before: tuple[int, ...], after: tuple[int, ...], value: float = 0.0) -> Tensor:
        return self.builder.emit(Pad(before, after, value), x)

    def reshape(self, x: Tensor, *shape: int) -> Tensor:
        return self.builder.emit(Reshape(shape), x)

    def max_pool(self, x: Tensor, kernel: int = 2, stride: int = 1, padding: int = 0) -> Tensor:
        op = MaxPool2d((kernel, kernel), (stride, stride), Padding2d.symmetric(padding, padding))
        return self.first(self.builder.emit(op, self.last(x)))

    def avg_pool(self, x: Tensor, kernel: int = 2, stride: int = 1, padding: int = 0, count: bool = False) -> Tensor:
        sides = Padding2d.symmetric(padding, padding)
        return self.first(self.builder.emit(AvgPool2d((kernel, kernel), (stride, stride), sides, count), self.last(x)))

    def finish(self, *outputs: Tensor) -> Graph:
        graph = self.builder.finish(*outputs)
        graph.remove_dead()
        verify(graph)
        return graph


def random_inputs(graph: Graph, seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.integers(-128, 128, t.shape).astype(np.int8).view(t.type.dtype.value) for t in graph.inputs]


def assert_same(before: Graph, after: Graph) -> None:
    """Both graphs compute the same integers."""
    for seed in range(2):
        inputs = random_inputs(before, seed)
        expected, got = interpret(before, inputs), interpret(after, inputs)
        assert len(expected) == len(got)
        for number, (a, b) in enumerate(zip(expected, got, strict=True)):
            np.testing.assert_array_equal(a, b, err_msg=f"output {number}\n{before}\n{after}")


def apply(step: Pass, graph: Graph) -> Graph:
    """What a pass makes of a graph, checked to be legal and to compute the same."""
    after = graph.clone()
    changed = step.run(after)
    after.remove_dead()
    verify(after)
    assert_same(graph, after)
    assert changed or picture(graph) == picture(after), "the pass changed the graph and says that it did not"
    return after


_TYPE = re.compile(r": \w+\[[^\[\]]*(\[[^\]]*\][^\[\]]*)*\]")


def picture(graph: Graph) -> str:
    """The printed graph without types and constants, tensors named after their operators."""
    named = graph.clone()
    named.rename()
    text = _TYPE.sub("", str(named))
    lines = [re.sub(r"(, )?%\w+\.\w+", "", line).strip() for line in text.splitlines()[1:-1]]
    return "\n".join(line.replace("%", "") for line in lines)


def drawn(text: str) -> str:
    """An expected picture, without indentation."""
    return dedent(text).strip()


def count(graph: Graph, name: str) -> int:
    """Number of operators of a name."""
    return sum(n.op.name == name for n in graph.nodes)


def simplified(graph: Graph) -> Graph:
    """The graph after the whole pipeline, checked after every pass."""
    after = run_passes(graph.clone(), after=lambda step, changed: verify(changed))
    assert_same(graph, after)
    return after


class MergeEqualOperands(Pass):
    """A pass of a user's own: the larger of a value and itself is the value.

    maximum(x, x) -> y        x -> y
    """

    name = "merge_equal_operands"

    def run(self, graph: Graph) -> bool:
        walk = Walk(graph)
        for node in walk:
            if isinstance(node.op, Maximum) and node.inputs[0] is node.inputs[1]:
                walk.replace(node.output, node.inputs[0])
        return walk.changed
