"""Operators that read int8 or write the other type themselves, against the same graphs with conversions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from micronpu.ir import DType, Graph, Stage, interpret, verify
from micronpu.ir.graph import GraphBuilder, Node, Tensor
from micronpu.ir.op import Op, Rescaling
from micronpu.ir.types import QParams, TensorType
from micronpu.ir.window import Activation, Padding2d
from micronpu.ops.constants import BIAS_TYPE
from micronpu.ops.convolution import Conv2d, DepthwiseConv2d, TransposeConv2d
from micronpu.ops.elementwise import Add
from micronpu.ops.matmul import FullyConnected
from micronpu.ops.movement import Pad, Reshape, Transpose
from micronpu.ops.pooling import AvgPool2d, MaxPool2d
from micronpu.ops.quantization import Requantize
from micronpu.ops.slicing import Concat
from micronpu.passes import run_passes
from micronpu.targets.ethosu.legalize import legalize
from micronpu.targets.ethosu.options import EthosUOptions
from micronpu.targets.ethosu.rewrites.conversions import FuseConversions

NARROW, WIDE = DType.INT8, DType.INT16
QPARAMS = {NARROW: QParams.per_tensor(0.05, -9), WIDE: QParams.per_tensor(16 / 2**15, 0)}
RESULTS = {NARROW: QParams.per_tensor(0.5, -9), WIDE: QParams.per_tensor(128 / 2**15, 0)}
SMALLER = QParams.per_tensor(0.42, -13)
Builder = Callable[[], Graph]


class Rows(GraphBuilder):
    """Appends operators with random constants."""

    def __init__(self) -> None:
        super().__init__()
        self.dice = np.random.default_rng(3)

    def x(self, dtype: DType, *shape: int) -> Tensor:
        return self.input(TensorType(shape, dtype, QPARAMS[dtype]))

    def convert(self, x: Tensor, dtype: DType, qparams: QParams | None = None) -> Tensor:
        return self.emit(Requantize(dtype), x, qparams=qparams or RESULTS[dtype])

    def weighted(self, op: Op, x: Tensor, *shape: int, axis: int = 0, largest: float = 3.0) -> Tensor:
        """Append an operator with weights of a shape, a scale for each output, and a bias up to ``largest``."""
        count = shape[axis]
        scales = self.dice.uniform(0.002, 0.01, count)
        weight = TensorType(shape, NARROW, QParams.per_channel(tuple(scales.tolist()), axis))
        sums = QParams.per_channel(tuple((scales * x.type.scale).tolist()), 0)
        bias = self.dice.uniform(-largest, largest, count) / scales / x.type.scale
        constants = (
            self.constant(self.dice.integers(-127, 128, shape), weight),
            self.constant(np.rint(bias), TensorType((count,), BIAS_TYPE[x.type.dtype], sums)),
        )
        return self.emit(op, x, *constants, qparams=RESULTS[x.type.dtype])


def convolved(rows: Rows, x: Tensor, activation: Activation = Activation.NONE) -> Tensor:
    op = Conv2d((2, 1), Padding2d(1, 0, 1, 1), activation=activation)
    return rows.weighted(op, x, 12, 2, 3, x.shape[3])


OPERATORS: dict[str, Callable[[Rows, Tensor], Tensor]] = {
    "convolution": convolved,
    "relu": lambda rows, x: convolved(rows, x, Activation.RELU),
    "relu6": lambda rows, x: convolved(rows, x, Activation.RELU6),
    "depthwise": lambda rows, x: rows.weighted(DepthwiseConv2d(), x, 1, 3, 3, x.shape[3], axis=3),
    "linear": lambda rows, x: rows.weighted(FullyConnected(), x, 10, x.shape[3]),
    "transposed": lambda rows, x: rows.weighted(TransposeConv2d((2, 2)), x, 6, 2, 2, x.shape[3]),
}


def narrowing(name: str) -> Graph:
    """An int16 operator whose result is converted to int8."""
    rows = Rows()
    return rows.finish(rows.convert(OPERATORS[name](rows, rows.x(WIDE, 1, 9, 7, 8)), NARROW, SMALLER))


def widening(name: str) -> Graph:
    """An int8 operator whose result is converted to int16."""
    rows = Rows()
    return rows.finish(rows.convert(OPERATORS[name](rows, rows.x(NARROW, 1, 9, 7, 8)), WIDE))


def widened(name: str) -> Graph:
    """An int16 operator whose operand is converted from int8."""
    rows = Rows()
    return rows.finish(OPERATORS[name](rows, rows.convert(rows.x(NARROW, 1, 9, 7, 8), WIDE, QPARAMS[WIDE])))


FUSED: dict[str, Builder] = {
    f"{kind.__name__}_{name}": (lambda kind=kind, name=name: kind(name))
    for kind in (narrowing, widening, widened)
    for name in OPERATORS
    if (kind, name) != (widening, "transposed")
}


def fused(graph: Graph, accepts: Callable[[Node], bool] = lambda node: True) -> Graph:
    """A copy of a graph with fused conversions, checked after each step."""
    made, before = graph.clone(), str(graph)
    while FuseConversions(accepts).run(made):
        assert str(made) != before
        verify(run_passes(made), Stage.LITERT)
        before = str(made)
    assert str(made) == before
    return made


def samples(graph: Graph) -> list[np.ndarray]:
    dice = np.random.default_rng(4)
    types = [t.type for t in graph.inputs]
    return [dice.integers(*t.dtype.limits, t.shape, endpoint=True).astype(t.dtype.numpy) for t in types]


def conversions(graph: Graph) -> list[tuple[DType, tuple[int, ...]]]:
    return [(n.output.type.dtype, n.output.shape) for n in graph.nodes if isinstance(n.op, Requantize)]


@pytest.mark.parametrize("name", FUSED)
def test_a_fused_conversion_rounds_once(name: str) -> None:
    graph = FUSED[name]()
    made = fused(graph)
    assert not conversions(made)
    (op,) = (n.op for n in made.nodes if isinstance(n.op, Rescaling))
    assert made.inputs[0].type == graph.inputs[0].type and op.dtype is graph.outputs[0].type.dtype
    (found,), (wanted,) = interpret(made, samples(graph)), interpret(graph, samples(graph))
    off = np.abs(found.astype(np.int64) - wanted)
    # An int8 result between was rounded to 128 steps of int16, and operands by half a step each.
    assert off.max() <= {"narrowing": 1, "widening": 65, "widened": 5}[name.split("_")[0]]
    assert len(np.unique(found)) > 10


@pytest.mark.parametrize("name", [name for name in FUSED if not name.startswith("widened")])
def test_a_fused_conversion_is_nearer_to_the_real_result(name: str) -> None:
    graph = FUSED[name]()
    made, inputs = fused(graph), samples(graph)
    fine = made.clone()
    (node,) = (n for n in fine.nodes if isinstance(n.op, Rescaling))
    fine.nodes, fine.outputs = fine.nodes[: fine.nodes.index(node) + 1], node.outputs
    node.op = replace(node.op, dtype=DType.INT32)
    y, ends = node.output.type, graph.outputs[0].type
    node.output.type = TensorType(y.shape, DType.INT32, QParams.per_tensor(1e-6, 0))
    real = interpret(fine, inputs)[0] * 1e-6
    low, high = ((n - ends.zero_point) * ends.scale for n in ends.dtype.limits)
    errors = [
        np.square(
            (interpret(one, inputs)[0].astype(float) - ends.zero_point) * ends.scale - real.clip(low, high)
        ).mean()
        for one in (made, graph)
    ]
    assert errors[0] < errors[1] or (errors[0] == errors[1] and name.startswith("narrowing"))  # where none is at a tie


def test_one_operator_between_bytes_is_one_of_bytes() -> None:
    rows = Rows()
    y = convolved(rows, rows.convert(rows.x(NARROW, 1, 9, 7, 8), WIDE, QPARAMS[WIDE]))
    made = fused(rows.finish(rows.convert(y, NARROW)))
    node = made.nodes[-1]
    assert isinstance(node.op, Conv2d) and node.op.dtype is None and node.inputs[2].type.dtype is DType.INT32


def test_conversions_move_to_the_operators() -> None:
    rows = Rows()
    first = convolved(rows, rows.convert(rows.emit(MaxPool2d((2, 2), (1, 1)), rows.x(NARROW, 1, 9, 8, 8)), WIDE))
    pooled = rows.emit(MaxPool2d((2, 2), (2, 1)), rows.emit(Pad((0, 1, 0, 0), (0, 1, 0, 0)), first))
    both = rows.emit(Concat(3), pooled, rows.emit(MaxPool2d((1, 1), (1, 1)), convolved(rows, rows.x(WIDE, 1, 5, 6, 4))))
    assert both.shape == (1, 3, 6, 24)
    rest = rows.weighted(FullyConnected(), rows.convert(rows.emit(Reshape((3, 144)), both), NARROW), 5, 144)
    graph = rows.finish(rest)
    made = fused(graph)
    assert conversions(graph) and not conversions(made)
    assert [n.op.name for n in made.nodes if n.output.type.dtype is WIDE] == ["pad"]  # of the int16 input
    assert np.abs(interpret(made, samples(graph))[0].astype(int) - interpret(graph, samples(graph))[0]).max() <= 3


def kept() -> dict[str, tuple[Graph, int]]:
    """Graphs, and the number of conversions that stay."""
    found: dict[str, tuple[Graph, int]] = {}
    rows = Rows()
    y = convolved(rows, rows.x(WIDE, 1, 9, 7, 8))
    found["returned"] = rows.finish(y, rows.convert(y, NARROW)), 1
    rows = Rows()
    y = convolved(rows, rows.x(WIDE, 1, 9, 7, 8))
    found["read in both types"] = rows.finish(rows.convert(y, NARROW), rows.emit(MaxPool2d((1, 1), (1, 1)), y)), 1
    rows = Rows()
    y = convolved(rows, rows.x(WIDE, 1, 9, 7, 8))
    found["two conversions"] = rows.finish(rows.convert(y, NARROW), rows.convert(y, NARROW, SMALLER)), 2
    rows = Rows()
    x = rows.x(WIDE, 1, 9, 7, 8)
    found["a sum"] = rows.finish(rows.convert(rows.emit(Add(), x, x, qparams=QPARAMS[WIDE]), NARROW)), 1
    rows = Rows()
    found["an average"] = rows.finish(rows.convert(rows.emit(AvgPool2d((2, 2)), rows.x(WIDE, 1, 8, 8, 4)), NARROW)), 1
    rows = Rows()
    padded = rows.emit(Pad((0, 1, 0, 0), (0, 0, 0, 0), 0.7), rows.convert(rows.x(NARROW, 1, 8, 8, 4), WIDE))
    found["a pad of 0.7"] = rows.finish(padded), 1
    rows = Rows()
    found["a reshape"] = rows.finish(rows.convert(rows.emit(Reshape((4, 8)), rows.x(WIDE, 1, 32)), NARROW)), 1
    rows = Rows()
    x = rows.x(WIDE, 1, 8, 8, 4)
    pooled = rows.emit(MaxPool2d((2, 2), (2, 2)), x)
    found["an operand read twice"] = (
        rows.finish(rows.convert(pooled, NARROW), rows.emit(MaxPool2d((1, 1), (1, 1)), x)),
        1,
    )
    rows = Rows()
    first = rows.convert(rows.x(NARROW, 1, 8, 8, 4), WIDE, QPARAMS[WIDE])
    found["an operand of a concatenation"] = rows.finish(rows.emit(Concat(3), first, rows.x(WIDE, 1, 8, 8, 2))), 1
    rows = Rows()
    y = OPERATORS["transposed"](rows, rows.x(NARROW, 1, 9, 7, 8))
    found["int16 of a transposed convolution"] = rows.finish(rows.convert(y, WIDE)), 1
    rows = Rows()
    x = rows.convert(rows.x(NARROW, 1, 9, 7, 8), WIDE, QParams.per_tensor(1e3, 0))
    found["a bias beyond int32"] = rows.finish(rows.weighted(FullyConnected(), x, 5, 8, largest=2e6)), 1
    return found


@pytest.mark.parametrize("name", kept())
def test_conversions_that_stay(name: str) -> None:
    graph, count = kept()[name]
    made = fused(graph)
    assert len(conversions(made)) == count
    for found, wanted in zip(interpret(made, samples(graph)), interpret(graph, samples(graph)), strict=True):
        assert np.array_equal(found, wanted)


def test_equal_conversions_are_one_result() -> None:
    rows = Rows()
    y = convolved(rows, rows.x(WIDE, 1, 9, 7, 8))
    sides = [rows.emit(MaxPool2d((1, 1), (1, 1)), rows.convert(y, NARROW)) for _ in range(2)]
    made = fused(rows.finish(rows.emit(Concat(3), *sides)))
    assert not conversions(made) and sum(isinstance(n.op, Conv2d) for n in made.nodes) == 1


@pytest.mark.parametrize("refused", [Conv2d, MaxPool2d])
def test_what_the_compiler_refuses_stays(refused: type[Op]) -> None:
    """A compiler that refuses the fused operator, or any operator in TOSA, where alone two types may be mixed."""
    rows = Rows()
    y = rows.emit(MaxPool2d((1, 1), (1, 1)), convolved(rows, rows.x(WIDE, 1, 9, 7, 8)))
    graph = rows.finish(rows.convert(y, NARROW))

    def accepts(node: Node) -> bool:
        return not isinstance(node.op, refused) or (refused is Conv2d and node.output.type.dtype is WIDE)

    assert [dtype for dtype, _ in conversions(fused(graph, accepts))] == [NARROW]


def test_a_transpose_that_a_pass_moves_back() -> None:
    """The conversion moves behind the transpose, which is cheaper in int8, and the transpose behind the conversion."""
    rows = Rows()
    widened = rows.convert(rows.x(NARROW, 1, 6, 16), WIDE, QPARAMS[WIDE])
    y = rows.emit(Add(), rows.x(WIDE, 1, 16, 6), rows.emit(Transpose((0, 2, 1)), widened), qparams=RESULTS[WIDE])
    graph = rows.finish(y)
    made = legalize(graph.clone(), EthosUOptions("ethos-u55-128"), accepts=lambda node: True)
    assert sorted(node.op.name for node in made.nodes) == ["add", "requantize", "transpose"]
    assert np.array_equal(interpret(made, samples(graph))[0], interpret(graph, samples(graph))[0])
