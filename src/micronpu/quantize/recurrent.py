"""Rewrites of recurrent layers into their steps: an NPU program has no loop.

Registered with the rewrites of `micronpu.quantize.decompose`, and run with them.  Exact up to float rounding; the
states of all steps get one grid where the layer's result is read as a whole.  The weights stand in the program once.
Tested in `tests/compile/test_recurrent.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from micronpu.frontend.program import is_getitem, overload_name
from micronpu.quantize.decompose import Writer, rewrites
from micronpu.quantize.transforms import attribute, is_trained

aten = torch.ops.aten

MAX_STEPS = 128
"""Steps of all directions and layers that are written out: each is about ten operators, to compile and to store."""

State = Node | torch.Tensor
"""A state [batch, hidden]: computed, or known when the program is compiled, as the first one usually is."""


@rewrites("gru.input", "lstm.input", "rnn_tanh.input", "rnn_relu.input")
def _recurrent(write: Writer, node: Node, given: dict[str, Any]) -> Any:
    """x [T, B, I] -> T times a step -> cat -> y [T, B, H]; layers one after the other, directions side by side.

    The products with the inputs of all steps are one linear layer in front of them.
    """
    kind = overload_name(node).split(".")[0]
    x, layers = given["input"], int(given["num_layers"])
    directions = 2 if given["bidirectional"] else 1
    per_cell = 4 if given["has_biases"] else 2
    params = given["params"]
    steps = x.meta["val"].shape[1 if given["batch_first"] else 0]
    regular = len(params) == per_cell * layers * directions and x.meta["val"].dim() == 3
    trained = any(is_trained(write.model, p) for p in params)
    readers = list(node.users)
    if not regular or trained or steps * layers * directions > MAX_STEPS or not all(map(is_getitem, readers)):
        return None
    if given["train"] and given["dropout"]:
        return None
    initial = [_first_states(write, s) for s in (given["hx"] if kind == "lstm" else [given["hx"]])]
    rows = write(aten.transpose.int, x, 0, 1) if given["batch_first"] else x
    last: list[list[State]] = []
    for layer in range(layers):
        sides = []
        for direction in range(directions):
            index = layer * directions + direction
            cell = _Cell(write, kind, *params[per_cell * index : per_cell * (index + 1)])
            order = range(steps) if direction == 0 else range(steps - 1, -1, -1)
            outputs, states = cell.run(rows, order, [states[index] for states in initial])
            sides.append(_stacked(write, outputs))
            last.append(states)
        rows = sides[0] if directions == 1 else write(aten.cat.default, sides, -1)
    results: list[Any] = [write(aten.transpose.int, rows, 0, 1) if given["batch_first"] else rows]
    for reader in readers:
        number = int(reader.args[1])  # type: ignore[arg-type]
        if reader.users:
            if number and len(results) == 1:
                results += [_stacked(write, [states[i] for states in last]) for i in range(len(initial))]
            reader.replace_all_uses_with(results[number])
        write.model.graph.erase_node(reader)
    return results[0]


def _first_states(write: Writer, states: Node) -> list[State]:
    """One state per layer and direction from [layers * directions, B, H]."""
    known, count = attribute(write.model, states), states.meta["val"].shape[0]
    if known is not None:
        return list(known.detach().unbind(0))
    return [write(aten.select.int, states, 0, i) for i in range(count)]


def _stacked(write: Writer, states: list[Any]) -> Node:
    """[B, H] each to [len, B, H]."""
    parts = [write(aten.unsqueeze.default, _node(write, s), 0) for s in states]
    return parts[0] if len(parts) == 1 else write(aten.cat.default, parts, 0)


def _node(write: Writer, value: State) -> Node:
    return write.constant(value.contiguous()) if isinstance(value, torch.Tensor) else value


@dataclass
class _Cell:
    """One layer in one direction; weights [gates * H, I] and [gates * H, H] in torch's order of gates."""

    write: Writer
    kind: str
    input_weight: Node
    weight: Node
    input_bias: Node | None = None
    bias: Node | None = None

    def run(self, x: Node, order: range, states: list[State]) -> tuple[list[State], list[State]]:
        """The state after each step, in the order of time, and the last states."""
        projected = self.write(aten.linear.default, x, self.input_weight, self.input_bias)
        step = {"gru": self._gru, "lstm": self._lstm}.get(self.kind, self._simple)
        outputs: dict[int, State] = {}
        for time in order:
            states = step(self.write(aten.select.int, projected, 0, time), states)
            outputs[time] = states[0]
        return [outputs[time] for time in sorted(outputs)], states

    def _projected(self, state: State) -> State:
        """state @ weight' + bias, at compile time where the state is known."""
        if not isinstance(state, torch.Tensor):
            return self.write(aten.linear.default, state, self.weight, self.bias)
        weight = self.write.known(self.weight)
        bias = None if self.bias is None else self.write.known(self.bias)
        assert weight is not None
        with torch.no_grad():
            return torch.nn.functional.linear(state.double(), weight, bias).float()

    def _cut(self, x: State, first: int, count: int = 1) -> State:
        """Gates ``first`` to ``first + count`` of [B, gates * H]."""
        hidden = self.weight.meta["val"].shape[1]
        start, stop = first * hidden, (first + count) * hidden
        return x[:, start:stop] if isinstance(x, torch.Tensor) else self.write(aten.slice.Tensor, x, 1, start, stop)

    def _sum(self, x: State, z: State) -> Node:
        """x + z, where a zero that is known adds nothing."""
        if isinstance(z, torch.Tensor) and isinstance(x, Node) and not z.any():
            return x
        return self.write(aten.add.Tensor, _node(self.write, x), _node(self.write, z))

    def _gru(self, x: Node, states: list[State]) -> list[State]:
        """r, z = sigmoid(..); n = tanh(x_n + r * h_n); h' = n + z * (h - n)"""
        write, (state,) = self.write, states
        product = self._projected(state)
        gates = write(aten.sigmoid.default, self._sum(self._cut(x, 0, 2), self._cut(product, 0, 2)))
        reset, update = (self._cut(gates, i) for i in (0, 1))
        gated = write(aten.mul.Tensor, reset, _node(write, self._cut(product, 2)))
        new = write(aten.tanh.default, self._sum(self._cut(x, 2), gated))
        change = write(aten.sub.Tensor, _node(write, state), new)
        return [self._sum(new, write(aten.mul.Tensor, update, change))]

    def _lstm(self, x: Node, states: list[State]) -> list[State]:
        """i, f, o = sigmoid(..), g = tanh(..); c' = f * c + i * g; h' = o * tanh(c')"""
        write, (state, memory) = self.write, states
        gates = self._sum(x, self._projected(state))
        opened = write(aten.sigmoid.default, self._cut(gates, 0, 2))
        enter, keep = (self._cut(opened, i) for i in (0, 1))
        content = write(aten.tanh.default, self._cut(gates, 2))
        leave = write(aten.sigmoid.default, self._cut(gates, 3))
        new = write(aten.mul.Tensor, enter, content)
        if not (isinstance(memory, torch.Tensor) and not memory.any()):
            new = self._sum(write(aten.mul.Tensor, keep, _node(write, memory)), new)
        return [write(aten.mul.Tensor, leave, write(aten.tanh.default, new)), new]

    def _simple(self, x: Node, states: list[State]) -> list[State]:
        """h' = tanh(x + h), or relu"""
        target = aten.tanh.default if self.kind.endswith("tanh") else aten.relu.default
        return [self.write(target, self._sum(x, self._projected(states[0])))]
