"""Every pass of the pipelines has a row: a graph on which it fires, compared with the reference after each change."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from tests.unit.passes.pass_graphs import Net, assert_same

from micronpu.ir import Graph, Tensor, verify
from micronpu.ir.window import Padding2d
from micronpu.ops.clamps import Clamp
from micronpu.ops.pooling import MaxPool2d
from micronpu.ops.slicing import Slice
from micronpu.passes.base import MergePairs, Pass
from micronpu.passes.legalize import LEGALIZE_TOSA
from micronpu.passes.pipeline import FINISH, LEGALIZE, SETTLE, SIMPLIFY

STEPS: tuple[Pass, ...] = (*SIMPLIFY, *SETTLE, *FINISH, *LEGALIZE, *LEGALIZE_TOSA)


def _cut(net: Net, x: Tensor, *size: int) -> Tensor:
    return net.builder.emit(Slice((0,) * len(size), size), x)


def _slices_of_an_image(net: Net, x: Tensor) -> Tensor:
    begins = ((0, 0, 0, 0), (0, 2, 0, 0))
    parts = [net.last(net.builder.emit(Slice(begin, (1, 2, 8, 8)), x)) for begin in begins]
    return net.concat(3, *(net.relu(part) for part in parts))


def _gathered(net: Net, x: Tensor) -> Tensor:
    y = net.conv(net.relu(x), 4)
    return net.add(y, x)


def _picked(net: Net, x: Tensor) -> Tensor:
    y = net.last(x)
    for stride in ((2, 1), (1, 2)):
        y = net.builder.emit(MaxPool2d((1, 1), stride), y)
    return y


def _lowest(net: Net, x: Tensor) -> Tensor:
    padded = net.pad(net.last(x), (0, 1, 1, 0), (0, 1, 1, 0), float("-inf"))
    return net.builder.emit(MaxPool2d((3, 3), (1, 1)), padded)


# Pass -> what is made of x [1, 4, 8, 8].
ROWS: dict[str, Callable[[Net, Tensor], Tensor]] = {
    "remove_no_ops": lambda net, x: net.sigmoid(net.reshape(x, *x.shape)),
    "merge_transposes": lambda net, x: net.transpose(net.transpose(x, 0, 2, 3, 1), 0, 2, 1, 3),
    "sink_transposes": lambda net, x: net.sigmoid(net.transpose(x, 0, 2, 3, 1)),
    "sink_through_reshapes": lambda net, x: net.reshape(net.conv(x, 4), 1, 4, 64),
    "fold_pads": lambda net, x: net.conv(net.pad(x, (0, 0, 0, 0), (0, 0, 1, 1)), 4, 3, 2, Padding2d()),
    "transpose_to_reshape": lambda net, x: net.transpose(net.reshape(x, 1, 1, 1, 256), 0, 3, 1, 2),
    "merge_reshapes": lambda net, x: net.reshape(net.reshape(x, 4, 64), 16, 16),
    "merge_slices": lambda net, x: _cut(net, _cut(net, x, 1, 4, 6, 8), 1, 4, 6, 5),
    "merge_picks": _picked,
    "fold_transpose_into_linear": lambda net, x: net.linear(net.reshape(net.conv(x, 4), 1, 256), 5),
    "activation_before_concat": lambda net, x: net.relu(net.concat(1, net.conv(x, 4), net.conv(x, 3))),
    "fuse_activations": lambda net, x: net.relu(net.conv(x, 4)),
    "lift_transposes": lambda net, x: net.sigmoid(net.relu(net.transpose(net.sigmoid(x), 0, 2, 3, 1))),
    "gather_transposes": _gathered,
    "hoist_transposes": _slices_of_an_image,
    "split_average_pools": lambda net, x: net.avg_pool(x, 3, 2, 1),
    "split_pads": lambda net, x: net.conv(x, 4, 3, 1, Padding2d(2, 0, 0, 1)),
    "copy_outputs": lambda net, x: x,
    "fold_lowest_pads": _lowest,
}


def graph_of(make: Callable[[Net, Tensor], Tensor]) -> Graph:
    net = Net()
    return net.finish(make(net, net.input(1, 4, 8, 8)))


def fired(steps: Sequence[Pass], graph: Graph) -> set[str]:
    """Names of the passes that change the graph, each of whose results computes what the graph did."""
    names, after = set(), graph.clone()
    for step in steps:
        if step.run(after):
            after.remove_dead()
            verify(after)
            assert_same(graph, after)
            names.add(step.name)
    return names


def test_every_pass_has_a_row() -> None:
    assert set(ROWS) == {step.name for step in STEPS}


@pytest.mark.parametrize("name", ROWS)
def test_a_pass_fires_and_computes_the_same(name: str) -> None:
    (step, *_) = (s for s in STEPS if s.name == name)
    graph = graph_of(ROWS[name])
    for before in ((), SIMPLIFY, (*SIMPLIFY, *SETTLE)):
        prepared = graph.clone()
        for earlier in (s for s in before if s.name != name):
            earlier.run(prepared)
            prepared.remove_dead()
        if name in fired([step], prepared):
            return
    pytest.fail(f"{name} does not fire on\n{graph}")


class DropFirstBounds(MergePairs):
    """Two clamps as the second alone, which is wrong.

    x -> clamp(-0.2, 0.2) -> clamp(-3, 3) -> y        x -> clamp(-3, 3) -> y
    """

    name = "merge_clamps"

    kind = Clamp

    def merged(self, first: Clamp, second: Clamp) -> Clamp:
        return second


def test_a_wrong_pass_is_found() -> None:
    graph = graph_of(lambda net, x: net.clamp(net.clamp(x, -0.2, 0.2), -3.0, 3.0))
    with pytest.raises(AssertionError, match="output 0"):
        fired([DropFirstBounds()], graph)
