"""Every rewrite of every family fires on rows of the operator tests, and differs from the reference by what it says."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from tests.cases import Case, all_cases
from tests.compile.targets.neutron.test_neutron_rewrites import ROWS as NEUTRON_ROWS
from tests.unit.targets.ethosu.test_ethosu_offers import CASES as OFFERS
from tests.unit.targets.ethosu.test_ethosu_offers import convolution

from micronpu.base.errors import UnsupportedError
from micronpu.ir import DType, Graph, Stage, interpret, verify
from micronpu.ir.graph import Node, Tensor
from micronpu.ir.types import QParams, TensorType
from micronpu.ir.window import Padding2d
from micronpu.ops.activation import Prelu
from micronpu.ops.clamps import Clamp
from micronpu.ops.elementwise import Sub
from micronpu.ops.matmul import FullyConnected
from micronpu.ops.softmax import Softmax
from micronpu.passes.rewrite import Chain, Rewrite
from micronpu.targets.backend import Backend
from micronpu.targets.cortexm import rewrites as cortexm
from micronpu.targets.registry import BACKENDS


def own(backend: Backend) -> tuple[Rewrite, ...]:
    """The rewrites of a family, without those of the core beside it."""
    every = (*backend.options.switchable_rewrites, *backend.options.needed_rewrites)
    return every if not backend.backend_id else tuple(r for r in every if r not in cortexm.REWRITES)


OWN: dict[str, Sequence[Rewrite]] = {name: own(backend) for name, backend in BACKENDS.items()}
PAIRS = [(backend, rewrite) for backend, rewrites in OWN.items() for rewrite in rewrites]


def rows() -> list[Case]:
    """Of int8, and the int16 operators that a rewrite is for."""
    every = [(row, {t.type.dtype for t in row.graph().inputs}) for row in all_cases()]
    wide = {"batch_matmul", "resize_bilinear", "amin"}
    return [r for r, t in every if t == {DType.INT8} or (t == {DType.INT16} and r.op.name in wide)]


def graphs() -> Iterator[Graph]:
    """Graphs whose last node is what a rewrite may work on."""
    yield from (row.graph() for row in rows())
    yield from (graph.clone() for made in NEUTRON_ROWS.values() for graph in made)
    yield from (make() for _, make, _ in OFFERS)
    yield convolution((16, 24, 3), (5, 4, 4), (4, 4))
    yield convolution((17, 24, 3), (5, 7, 5), (4, 5), Padding2d(3, 3, 2, 2))
    yield many_weights()
    yield half_steps()
    yield slope_at_a_tie()


def many_weights() -> Graph:
    """A linear layer of 144,000 weights, with a scale for each output."""
    dice = np.random.default_rng(3)
    x = Tensor("x", TensorType((1, 480), DType.INT8, QParams.per_tensor(0.05, 3)))
    scales = dice.uniform(0.001, 0.02, 300)
    weight = TensorType((300, 480), DType.INT8, QParams.per_channel(tuple(scales.tolist()), 0))
    bias = TensorType((300,), DType.INT32, QParams.per_channel(tuple((scales * 0.05).tolist()), 0))
    operands = [
        x,
        Tensor("weight", weight, dice.integers(-127, 128, weight.shape).astype(np.int8)),
        Tensor("bias", bias, dice.integers(-5000, 5000, bias.shape).astype(np.int32)),
    ]
    y = Tensor("y", TensorType((1, 300), DType.INT8, QParams.per_tensor(0.4, -2)))
    return Graph([x], [y], [Node(FullyConnected(), operands, [y])])


def half_steps() -> Graph:
    """A difference whose second operand is often a step and a half of the grid that both are brought to."""
    x, z, y = (TensorType((4096,), DType.INT8, QParams.per_tensor(s, 0)) for s in (0.5, 1 / 3, 1 / 3))
    operands, result = [Tensor("x", x), Tensor("z", z)], Tensor("y", y)
    return Graph(operands, [result], [Node(Sub(), operands, [result])])


def slope_at_a_tie() -> Graph:
    """A rectifier whose slope takes one of the numbers to a tie, but for how the factor is rounded."""
    numbers = (1, 1, 256, 8)
    x = Tensor("x", TensorType(numbers, DType.INT8, QParams.per_tensor(0.01943403237033138, -19)))
    y = Tensor("y", TensorType(numbers, DType.INT8, QParams.per_tensor(0.010742179694178892, 6)))
    slopes = TensorType((1, 1, 8), DType.INT8, QParams.per_tensor(0.03148108038191424, 0))
    slope = Tensor("slope", slopes, np.full((1, 1, 8), -33, np.int8))
    return Graph([x], [y], [Node(Prelu(), [x, slope], [y])])


def steps_apart(rewrite: Rewrite, graph: Graph) -> int | None:
    """By how many steps what it makes of the last node differs at the most; None where it offers nothing."""
    node = graph.nodes[-1]
    before = graph.nodes[-2] if len(graph.nodes) > 1 else None
    offers = list(rewrite.offers(node, before))
    if not offers:
        return None
    rng, worst = np.random.default_rng(0), 0
    drawn = [(t, *t.type.dtype.limits) for t in graph.inputs]
    inputs = [rng.integers(low, high + 1, t.shape).astype(t.type.dtype.numpy) for t, low, high in drawn]
    expected = interpret(graph, inputs)
    for nodes in offers:
        changed = Graph(list(graph.inputs), list(graph.outputs), [*graph.nodes[:-1], *nodes])
        changed.remove_dead()
        verify(changed, Stage.IMPORTED)
        got = interpret(changed, inputs)
        apart = (np.abs(a.astype(np.int64) - b).max(initial=0) for a, b in zip(expected, got, strict=True))
        worst = max(worst, *(int(a) for a in apart))
    return worst


def test_names_differ_in_a_backend_and_say_something() -> None:
    for rewrites in OWN.values():
        assert len({r.name for r in rewrites}) == len(rewrites)
        assert all((inspect.getdoc(type(r)) or "").split("\n")[0].endswith((".", "Exact and free.")) for r in rewrites)


@pytest.fixture(scope="module")
def known() -> list[Graph]:
    return list(graphs())


@pytest.mark.parametrize(("backend", "rewrite"), PAIRS, ids=lambda v: v if isinstance(v, str) else v.name)
def test_a_rewrite_fires_and_keeps_its_bound(backend: str, rewrite: Rewrite, known: list[Graph]) -> None:
    """On every row on which it fires; the others, of all operators, it leaves alone."""
    found = []
    for graph in known:
        try:
            apart = steps_apart(rewrite, graph)
        except UnsupportedError:
            continue
        if apart is not None:
            found.append(apart)
            most = rewrite.max_steps if rewrite.max_steps is not None else MEASURED[rewrite.name](graph)
            assert apart <= most, str(graph)
    assert found, f"{rewrite.name} of {backend} has no row on which it fires"
    assert rewrite.max_steps in (None, max(found)), f"no row of {rewrite.name} reaches its bound, which is too wide"


def larger_scale(graph: Graph) -> float:
    """Steps of a softmax on the coarser grid that `PadChannels` may need: half of what x is rounded by, and one more.

    Where x goes up by e and all others go down by it, p moves by 2 e p (1 - p), at most e / 2.
    """
    x, y = graph.nodes[-1].inputs[0].type, graph.nodes[-1].output.type
    assert x.qparams is not None and y.qparams is not None
    step = x.qparams.scale[0]
    if not isinstance(graph.nodes[-1].op, Softmax) or 255 * step >= 16:
        return 0
    return (step + 8 / 255) / 2 / 2 / y.qparams.scale[0] + 1


MEASURED = {"pad_channels": larger_scale}
"""Bounds in steps of rewrites that say they depend on the values, by the graph."""


class DropLowestBound(Rewrite):
    """A clamp without its lower bound, which is wrong."""

    name = "drop_lowest_bound"

    def apply(self, node: Node) -> list[Node] | None:
        if not isinstance(node.op, Clamp):
            return None
        chain = Chain(self.name, node)
        return chain.result(chain.add(Clamp(None, 1e3), *node.inputs), node.output)


def test_a_wrong_rewrite_is_found(known: list[Graph]) -> None:
    found = [apart for graph in known if (apart := steps_apart(DropLowestBound(), graph)) is not None]
    assert max(found) > 0
