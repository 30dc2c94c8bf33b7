"""All passes together: exact on random networks, legal after every one, linear in the size of the graph."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import FrameType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.passes.pass_graphs import FIRST, LAST, Net, assert_same, count, drawn, picture, q

from micronpu.base.errors import OptionError
from micronpu.ir import Graph, Tensor, verify
from micronpu.ir.window import NO_PADDING, Activation, Padding2d
from micronpu.passes import LITERT_PASSES, Pass, run_passes
from micronpu.passes.pipeline import FINISH, LEGALIZE, SETTLE, SIMPLIFY

NAMES = [step.name for step in (*SIMPLIFY, *SETTLE, *FINISH)]


def checked(graph: Graph, **options) -> Graph:
    """The graph after all passes; every one leaves a legal graph that computes what the first one computed."""

    def after(step: Pass, changed: Graph) -> None:
        try:
            verify(changed)
            assert_same(graph, changed)
        except Exception as error:
            raise AssertionError(f"after the pass {step.name}:\n{changed}") from error

    return run_passes(graph.clone(), after=after, **options)


# ---------------------------------------------------------------- random networks

PERMUTATIONS = [FIRST, LAST, (0, 1, 3, 2), (0, 2, 1, 3), (3, 2, 1, 0)]
RESCALED = q(0.08, -6)


class Programs:
    """Draws a program operator by operator; every tensor so far may be read again."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.net = Net()
        size = st.sampled_from([1, 2, 4])
        shape = (1, draw(size), draw(size), draw(size))
        self.images = [self.net.input(*shape)]
        if draw(st.booleans()):
            self.images.append(self.net.input(*shape, scale=0.03, zero=-128))
        self.others: list[Tensor] = []

    def image(self) -> Tensor:
        return self.draw(st.sampled_from(self.images))

    def same_shape(self, x: Tensor) -> Tensor:
        return self.draw(st.sampled_from([t for t in self.images if t.shape == x.shape]))

    def step(self) -> None:
        make: Callable[[Tensor], Tensor] = self.draw(st.sampled_from(self.STEPS)).__get__(self)
        y = make(self.image())
        if y.type.rank == 4:
            self.images.append(y)
        else:
            self.others.append(y)

    def conv(self, x: Tensor) -> Tensor:
        padding = self.draw(st.sampled_from([None, Padding2d(1, 1, 1, 1), Padding2d(1, 0, 2, 1)]))
        return self.net.conv(
            x, self.draw(st.sampled_from([x.shape[1], 2])), self.draw(st.sampled_from([1, 2])), 1, padding
        )

    def depthwise(self, x: Tensor) -> Tensor:
        return self.net.depthwise(x)

    def relu(self, x: Tensor) -> Tensor:
        kind = self.draw(st.sampled_from([Activation.RELU, Activation.RELU6, Activation.RELU_0_TO_1]))
        return self.net.relu(x, self.draw(st.sampled_from([None, RESCALED])), kind)

    def clamp(self, x: Tensor) -> Tensor:
        return self.net.clamp(x, *self.draw(st.sampled_from([(-1.0, 2.0), (None, 1.0), (-99.0, 99.0)])))

    def sigmoid(self, x: Tensor) -> Tensor:
        return self.net.sigmoid(x)

    def softmax(self, x: Tensor) -> Tensor:
        return self.net.first(self.net.softmax(self.net.last(x)))

    def add(self, x: Tensor) -> Tensor:
        other = self.draw(
            st.sampled_from([self.same_shape(x), self.net.constant(x.shape[1], 1, 1), self.net.constant()])
        )
        return self.net.add(*((x, other) if self.draw(st.booleans()) else (other, x)))

    def concat(self, x: Tensor) -> Tensor:
        return self.net.concat(self.draw(st.integers(1, 3)), x, self.same_shape(x))

    def mean(self, x: Tensor) -> Tensor:
        axes = self.draw(st.sampled_from([(2, 3), (1,), (3,), (0, 1, 2, 3)]))
        return self.net.mean(x, *axes, keep=self.draw(st.booleans()))

    def pad(self, x: Tensor) -> Tensor:
        sides = st.sampled_from([(0, 0, 1, 0), (0, 0, 1, 2), (0, 1, 0, 0), (0, 0, 0, 0)])
        return self.net.pad(x, self.draw(sides), self.draw(sides), self.draw(st.sampled_from([0.0, 0.0, -1.0])))

    def transpose(self, x: Tensor) -> Tensor:
        return self.net.transpose(x, *self.draw(st.sampled_from(PERMUTATIONS)))

    def reshape(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        shapes = [(n, c, h, w), (n, c * h, w, 1), (n, h * w, 1, c), (1, n, c, h * w)]
        return self.net.reshape(x, *self.draw(st.sampled_from(shapes)))

    def pool(self, x: Tensor) -> Tensor:
        make = self.draw(st.sampled_from(["max", "max", "avg", "avg_count"]))
        if make == "max":
            return self.net.max_pool(x, *self.draw(st.sampled_from([(1, 1, 0), (1, 2, 0), (3, 1, 1), (3, 2, 1)])))
        if make == "avg":
            return self.net.avg_pool(x, *self.draw(st.sampled_from([(1, 1, 0), (3, 1, 1)])))
        return self.net.avg_pool(x, 3, *self.draw(st.sampled_from([(1, 1), (2, 1)])), count=True)

    def linear(self, x: Tensor) -> Tensor:
        flat = self.net.reshape(x, x.shape[0], x.type.size // x.shape[0])
        return self.net.linear(flat, self.draw(st.sampled_from([1, 3])))

    STEPS = (conv, conv, depthwise, relu, relu, clamp, sigmoid, softmax, add, add, add, concat, mean, pad, transpose,
             transpose, reshape, pool, linear)  # fmt: skip

    def finish(self) -> Graph:
        """The last value is an output, others at random; an input or one value twice may be among them."""
        everything = [*self.images, *self.others]
        last = (self.others or self.images)[-1]
        more = self.draw(st.lists(st.sampled_from(everything), max_size=2))
        return self.net.finish(self.images[-1], *more, last)


@st.composite
def programs(draw: st.DrawFn) -> Graph:
    made = Programs(draw)
    for _ in range(draw(st.integers(1, 9))):
        made.step()
    return made.finish()


RANDOM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@given(programs())
@settings(RANDOM, max_examples=250)
def test_passes_keep_the_integers_of_random_programs(graph: Graph):
    checked(graph)


@given(programs(), st.lists(st.sampled_from(NAMES), unique=True))
@settings(RANDOM, max_examples=60)
def test_any_pass_can_be_left_out(graph: Graph, disabled: list[str]):
    checked(graph, disabled=disabled)


@given(programs())
@settings(RANDOM, max_examples=60)
def test_a_second_run_finds_nothing_to_gain(graph: Graph):
    after = run_passes(graph.clone())
    again = run_passes(after.clone())
    assert len(again.nodes) == len(after.nodes), f"{picture(after)}\n\nbecomes\n\n{picture(again)}"


# ---------------------------------------------------------------- the list


def test_every_pass_has_a_name_of_its_own_and_a_picture():
    assert len({step.name for step in LITERT_PASSES}) == len(LITERT_PASSES)
    for step in LITERT_PASSES:
        text = inspect.getdoc(step)
        assert text and text.splitlines()[0].endswith("."), step.name
        assert "->" in text or "graph(x)" in text, f"the doc-string of {step.name} has no picture"


@pytest.mark.parametrize("name", NAMES)
def test_a_pass_that_is_left_out_changes_nothing(name: str):
    net = Net()
    x = net.input(1, 4, 8, 8)
    y = net.relu(net.conv(net.pad(x, (0, 0, 1, 1), (0, 0, 1, 1)), 4, 3, padding=NO_PADDING))
    y = net.reshape(net.reshape(net.add(y, x), 4, 64), 1, 256)
    y = net.linear(net.reshape(y, 1, 256), 10)
    seen: list[str] = []
    run_passes(net.finish(y), disabled=[name], after=lambda step, graph: seen.append(step.name))
    assert seen and name not in seen


@pytest.mark.parametrize("disabled", [["sink_transpose"], "sink_transpose", ("remove_no_ops", "")])
def test_an_unknown_pass_is_refused(disabled):
    net = Net()
    with pytest.raises(OptionError) as caught:
        run_passes(net.finish(net.sigmoid(net.input(2, 3))), disabled=disabled)
    wrong = "sink_transpose" if "sink_transpose" in disabled else ""
    text = str(caught.value)
    near = "sink_transposes" if wrong else NAMES[0]
    assert text.startswith(f"There is no pass {wrong!r} to leave out. Try: one of {len(NAMES)}, such as ")
    assert near in text and text.endswith("; `micronpu passes` lists all.") and len(text) < 300


@pytest.mark.parametrize("name", [step.name for step in LEGALIZE])
def test_legalisation_cannot_be_left_out(name: str):
    net = Net()
    with pytest.raises(OptionError, match=f"The pass '{name}' cannot be left out, because LiteRT has no words"):
        run_passes(net.finish(net.sigmoid(net.input(2, 3))), disabled=[name])


def test_dead_operators_go_even_if_nothing_else_changes():
    net = Net()
    x = net.input(2, 3)
    graph = net.builder.finish(net.sigmoid(x), net.softmax(x))
    graph.outputs.pop()
    assert [n.op.name for n in run_passes(graph).nodes] == ["sigmoid"]


def test_a_network_of_two_inputs_and_two_outputs():
    net = Net()
    left, right = net.input(1, 4, 8, 8), net.input(1, 4, 8, 8, scale=0.02)
    joined = net.concat(1, net.relu(net.conv(left, 8, 3)), net.conv(right, 8, 3, out=q(0.07, -5)))
    features = net.relu(net.conv(joined, 8))
    scores = net.linear(net.reshape(net.mean(features, 2, 3), 1, 8), 5)
    after = checked(net.finish(net.softmax(scores), net.max_pool(features, 2, 2)))
    assert picture(after) == drawn(
        """
        transpose_0 = transpose{permutation=(0, 2, 3, 1)}(input_0)
        conv2d_0 = conv2d{padding=(1,1,1,1), activation=relu}(transpose_0)
        transpose_1 = transpose{permutation=(0, 2, 3, 1)}(input_1)
        conv2d_1 = conv2d{padding=(1,1,1,1)}(transpose_1)
        concat_0 = concat{axis=3}(conv2d_0, conv2d_1)
        conv2d_2 = conv2d{activation=relu}(concat_0)
        mean_0 = mean{axes=(1, 2)}(conv2d_2)
        fully_connected_0 = fully_connected(mean_0)
        softmax_0 = softmax(fully_connected_0)
        max_pool2d_0 = max_pool2d{kernel=(2, 2), stride=(2, 2)}(conv2d_2)
        transpose_2 = transpose{permutation=(0, 3, 1, 2)}(max_pool2d_0)
        return softmax_0, transpose_2
        """
    )


# ---------------------------------------------------------------- cost


def blocks(number: int) -> Graph:
    """Residual blocks of a padded convolution, a clamp, an addition and two operators that do nothing."""
    net = Net()
    weight = net.weights(4, 3, 3, 4)
    x = net.input(1, 4, 4, 4)
    for _ in range(number):
        y = net.pad(net.reshape(x, *x.shape), (0, 0, 1, 1), (0, 0, 1, 1))
        y = net.relu(net.conv(y, 4, 3, padding=NO_PADDING, weight=weight))
        x = net.add(net.transpose(y, 0, 1, 2, 3), x)
    return net.finish(x)


def executed_lines(number: int) -> int:
    """Lines of Python that the passes execute, which unlike seconds are the same in every run."""
    graph, lines = blocks(number), 0

    def trace(frame: FrameType, event: str, argument: object) -> object:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run_passes(graph)
    finally:
        sys.settrace(before)
    assert count(graph, "conv2d") == count(graph, "add") == number
    assert count(graph, "transpose") == 2
    return lines


def test_the_cost_is_linear():
    """In lines that are executed, which no load changes; at 400 blocks as at 40."""
    assert executed_lines(80) < 2.1 * executed_lines(40)
    assert executed_lines(400) < 10.5 * executed_lines(40)
