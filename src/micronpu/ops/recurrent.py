"""Recurrent layers unrolled into steps: an NPU program has no loops.

Exact up to float rounding; the states of all steps share qparams if the layer's result is read as a whole. The program
contains the weights once. Tested in `tests/compile/ops/test_recurrent.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from micronpu.ir.facts import POSITIVE, SIGNS, Facts
from micronpu.ir.lowering import Float, Results, Writer, decomposes, states

RECURRENT = ("gru.input", "lstm.input", "rnn_tanh.input", "rnn_relu.input")
CELLS = ("gru_cell.default", "lstm_cell.default", "rnn_tanh_cell.default", "rnn_relu_cell.default")
MAX_STEPS = 128
"""Maximum number of unrolled steps, over all directions and layers: each is about ten operators, to compile and to
store. A longer layer becomes one step in a loop."""

_GATES = {"gru": 3, "lstm": 4}
State = Any
"""A state [batch, hidden]: a value of the program, or an array known at compile time, such as the usual initial
state."""


states("rnn_relu.input", "rnn_relu_cell.default", facts=Facts(range=POSITIVE))
states("rnn_tanh.input", "rnn_tanh_cell.default", facts=Facts(range=SIGNS))


@decomposes(*RECURRENT)
def _recurrent(write: Writer) -> Float:
    """x [T, B, I] -> T times a step -> cat -> y [T, B, H]; layers in sequence, directions concatenated.

    The products with the inputs of all steps are one linear layer before them.
    """
    given = write.given
    kind = write.overload.split(".")[0]
    x, layers = given["input"], int(given["num_layers"])
    directions = 2 if given["bidirectional"] else 1
    per_cell = 4 if given["has_biases"] else 2
    params = given["params"]
    shape = write.shape(x)
    steps = shape[1 if given["batch_first"] else 0]
    if kind == "lstm" and len(params) == (per_cell + 1) * layers * directions:
        per_cell += 1  # and the projection of each state
    regular = len(params) == per_cell * layers * directions and len(shape) == 3
    read = write.read()
    is_trained = (given["train"] and given["dropout"]) or any(map(write.is_trained, params))
    if not regular or read is None or is_trained:
        return None
    initial = [_first_states(write, s) for s in (given["hx"] if kind == "lstm" else [given["hx"]])]
    rows = write("transpose.int", x, 0, 1) if given["batch_first"] else x
    last: list[list[State]] = []
    for layer in range(layers):
        sides = []
        for direction in range(directions):
            index = layer * directions + direction
            own = list(params[per_cell * index : per_cell * (index + 1)])
            projection = own.pop() if per_cell % 2 else None
            input_weight, weight, input_bias, bias = (*own, None, None)[:4]
            cell = _Cell(write, kind, input_weight, weight, input_bias, bias, projection)
            first, reverse = [states[index] for states in initial], direction == 1
            if steps * layers * directions > MAX_STEPS:
                made = cell.loop(rows, first, reverse=reverse)
            else:
                outputs, states = cell.run(rows, range(steps)[:: -1 if reverse else 1], first)
                made = _stacked(write, outputs), states
            if made is None:
                return None
            sides.append(made[0])
            last.append(made[1])
        rows = sides[0] if directions == 1 else write("cat.default", sides, -1)
    results = {0: write("transpose.int", rows, 0, 1) if given["batch_first"] else rows}
    for number in range(len(initial)):
        if number + 1 in read:
            results[number + 1] = _stacked(write, [states[number] for states in last])
    return Results(results)


@decomposes(*CELLS)
def _cell(write: Writer) -> Float:
    """One step: x [B, I], states [B, H] -> linear, linear -> gates -> new states [B, H]."""
    given = write.given
    kind = write.overload.split(".")[0].removesuffix("_cell")
    weights = [given[name] for name in ("w_ih", "w_hh", "b_ih", "b_hh")]
    if any(write.is_trained(w) for w in weights):
        return None
    states = list(given["hx"]) if kind == "lstm" else [given["hx"]]
    cell = _Cell(write, kind, *weights)
    made = cell.step(write("linear.default", given["input"], weights[0], weights[2]), states)
    return Results(dict(enumerate(made))) if kind == "lstm" else made[0]


def _first_states(write: Writer, states: Float) -> list[State]:
    """One state per layer and direction from [layers * directions, B, H]."""
    known = write.stored(states)
    if known is not None:
        return list(known)
    return [write("select.int", states, 0, i) for i in range(write.shape(states)[0])]


def _stacked(write: Writer, states: list[State]) -> Float:
    """Stack states [B, H] to [len, B, H]."""
    parts = [write("unsqueeze.default", _value(write, s), 0) for s in states]
    return parts[0] if len(parts) == 1 else write("cat.default", parts, 0)


def _value(write: Writer, state: State) -> Float:
    return write.constant(np.ascontiguousarray(state)) if isinstance(state, np.ndarray) else state


@dataclass
class _Cell:
    """One layer in one direction; weights [gates * H, I] and [gates * H, H] in torch's order of gates."""

    write: Writer
    kind: str
    input_weight: Float
    weight: Float
    input_bias: Float = None
    bias: Float = None
    projection: Float = None

    def run(self, x: Float, order: range, states: list[State]) -> tuple[list[State], list[State]]:
        """The state after each step, in order of time, and the last states."""
        projected = self.write("linear.default", x, self.input_weight, self.input_bias)
        outputs: dict[int, State] = {}
        for time in order:
            states = self.step(self.write("select.int", projected, 0, time), states)
            outputs[time] = states[0]
        return [outputs[time] for time in sorted(outputs)], states

    def loop(self, x: Float, states: list[State], *, reverse: bool) -> tuple[Float, list[State]] | None:
        """Like `run`, as a loop over rows; the outputs are concatenated."""
        write = self.write
        stored = [None if w is None else write.stored(w) for w in (self.weight, self.bias, self.projection)]
        if stored[0] is None:
            return None

        def step(inner: Writer, row: Float, values: list[Float]) -> list[Float]:
            weight, bias, projection = (None if w is None else inner.constant(np.ascontiguousarray(w)) for w in stored)
            return _Cell(inner, self.kind, None, weight, None, bias, projection).step(row, values)

        projected = write("linear.default", x, self.input_weight, self.input_bias)
        if reverse:
            projected = write("flip.default", projected, [0])
        results = write.loop(projected, [_value(write, state) for state in states], step)
        if results is None:
            return None
        outputs, *last = results
        return (write("flip.default", outputs, [0]) if reverse else outputs), last

    def step(self, projected: Float, states: list[State]) -> list[State]:
        """The states after one step, from the product with the step's input [B, gates * H] and the previous states."""
        return {"gru": self._gru, "lstm": self._lstm}.get(self.kind, self._simple)(projected, states)

    def _projected(self, state: State) -> State:
        """state @ weight' + bias, at compile time if the state is known."""
        if not isinstance(state, np.ndarray):
            return self.write("linear.default", state, self.weight, self.bias)
        weight = self.write.known(self.weight)
        bias = None if self.bias is None else self.write.known(self.bias)
        assert weight is not None
        product = state.astype(np.float64) @ weight.T
        return (product if bias is None else product + bias).astype(np.float32)

    def _cut(self, x: State, first: int, count: int = 1) -> State:
        """Gates ``first`` to ``first + count`` of [B, gates * H]."""
        hidden = self.write.shape(self.weight)[0] // _GATES.get(self.kind, 1)
        start, stop = first * hidden, (first + count) * hidden
        return x[:, start:stop] if isinstance(x, np.ndarray) else self.write("slice.Tensor", x, 1, start, stop)

    def _sum(self, x: State, z: State) -> Float:
        """x + z; a known zero is omitted."""
        if isinstance(z, np.ndarray) and not isinstance(x, np.ndarray) and not z.any():
            return x
        return self.write("add.Tensor", _value(self.write, x), _value(self.write, z))

    def _gru(self, x: Float, states: list[State]) -> list[State]:
        """r, z = sigmoid(..); n = tanh(x_n + r * h_n); h' = n + z * (h - n)"""
        write, (state,) = self.write, states
        product = self._projected(state)
        gates = write("sigmoid.default", self._sum(self._cut(x, 0, 2), self._cut(product, 0, 2)))
        reset, update = (self._cut(gates, i) for i in (0, 1))
        gated = write("mul.Tensor", reset, _value(write, self._cut(product, 2)))
        new = write("tanh.default", self._sum(self._cut(x, 2), gated))
        change = write("sub.Tensor", _value(write, state), new)
        return [self._sum(new, write("mul.Tensor", update, change))]

    def _lstm(self, x: Float, states: list[State]) -> list[State]:
        """i, f, o = sigmoid(..), g = tanh(..); c' = f * c + i * g; h' = o * tanh(c')"""
        write, (state, memory) = self.write, states
        gates = self._sum(x, self._projected(state))
        opened = write("sigmoid.default", self._cut(gates, 0, 2))
        enter, keep = (self._cut(opened, i) for i in (0, 1))
        content = write("tanh.default", self._cut(gates, 2))
        leave = write("sigmoid.default", self._cut(gates, 3))
        new = write("mul.Tensor", enter, content)
        if not (isinstance(memory, np.ndarray) and not memory.any()):
            new = self._sum(write("mul.Tensor", keep, _value(write, memory)), new)
        result = write("mul.Tensor", leave, write("tanh.default", new))
        return [result if self.projection is None else write("linear.default", result, self.projection, None), new]

    def _simple(self, x: Float, states: list[State]) -> list[State]:
        """h' = tanh(x + h), or relu"""
        overload = "tanh.default" if self.kind.endswith("tanh") else "relu.default"
        return [self.write(overload, self._sum(x, self._projected(states[0])))]
