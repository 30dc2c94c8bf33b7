"""Recurrent layers with too many steps to unroll: one step in a separate graph, called in a loop.

The step's graph is quantized together with the model. Each state has the same qparams as input and output of the step,
and the inputs and outputs of the loop have the qparams of the values outside.
"""

from __future__ import annotations

import contextlib
import copy
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from micronpu.frontend.facts import IS_STEP, LOOP_QPARAMS
from micronpu.frontend.graphs import Graph, GraphModule, Node, called_modules, place_of
from micronpu.frontend.integers import integer_states, stored_as, to_integer_io
from micronpu.frontend.program import Edge, ProgramView, add_dequantize, add_quantize, integers_behind, quantizes_of
from micronpu.frontend.tensors import KEY, State, States, add_constant, clean, states_of, with_own_graph
from micronpu.quantize.nodes import moves, observer_of, observers_in
from micronpu.quantize.observers import is_fixed, is_of_extremes
from micronpu.quantize.observing import RangeObserver
from micronpu.quantize.post_training import settle_concat_groups

_QUANTIZE = torch.ops.quantized_decomposed.quantize_per_tensor.default

Observer = Any


class Loop(nn.Module):
    """Calls a step for each row of a sequence.

    x [T, B, I], states [B, H] -> y [T, B, H] (the first state after each step), last states [B, H]

    Args:
        body: the step: x [B, I], states -> y, new states; its states are in its meta, see `states_of`.
    """

    def __init__(self, body: GraphModule) -> None:
        super().__init__()
        self.body = body
        self.prepared: GraphModule | None = None

    @property
    def all_qparams(self) -> tuple[Edge, ...]:
        """Qparams of x and of each state, after the step is quantized: the arguments of quantize and dequantize."""
        return LOOP_QPARAMS.of(self.body)

    def forward(self, x: torch.Tensor, *initial: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.over(self.body, x, *initial)

    def over(self, step: Callable[..., Any], x: torch.Tensor, *initial: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Call the step, or another function with its results, for each row."""
        states: tuple[torch.Tensor, ...] = initial
        before, results = [], []
        for row in x.unbind(0):
            before.append(states)
            y, *new = step(row, *states)
            states = tuple(new)
            results.append(y)
        if self.prepared is not None:
            # A step treats the rows of a batch independently: all steps are observed at once.
            self.prepared(x.reshape(-1, *x.shape[2:]), *(torch.cat(values) for values in zip(*before, strict=True)))
        return (torch.stack(results), *states)


def loops_of(module: GraphModule) -> Iterator[tuple[Node, Loop]]:
    """Yield the loops of a module with the nodes that call them."""
    yield from called_modules(module, Loop)


@contextlib.contextmanager
def unobserved(*modules: GraphModule) -> Iterator[None]:
    """Disable observation in the steps of loops: calibration has shown them each sample once."""
    steps = [(loop, loop.prepared) for module in modules for _, loop in loops_of(module)]
    for loop, _ in steps:
        loop.prepared = None
    try:
        yield
    finally:
        for loop, prepared in steps:
            loop.prepared = prepared


def step_body(x: torch.Tensor, states: Sequence[torch.Tensor]) -> tuple[GraphModule, list[Node]]:
    """Return an empty graph of a step with its inputs; its output must still be set."""
    graph = Graph()
    nodes = []
    for name, value in (("x", x), *((f"state_{i}", s) for i, s in enumerate(states))):
        node = graph.placeholder(name)
        node.meta["val"] = value
        nodes.append(node)
    graph.output(((nodes[1], *nodes[1:]),))
    module = GraphModule(nn.Module(), graph)
    module.meta[KEY] = States(
        tuple(State(f"state {i}", f"state_{i}", torch.zeros(tuple(s.shape))) for i, s in enumerate(states))
    )
    return module, nodes


def prepare_loops(prepared: GraphModule, quantizer: Any, prepare: Callable[[GraphModule, Any], GraphModule]) -> None:
    """Give the step of each loop observers; values that are also outside of the loop share its observers."""
    for node, loop in loops_of(prepared):
        inner = copy.copy(quantizer)
        inner.settings = replace(quantizer.settings, io=quantizer.settings.default)
        IS_STEP.say(step := with_own_graph(loop.body), True)
        loop.prepared = prepare(step, inner)
        settle_concat_groups(loop.prepared)  # the loop needs the qparams of its step before calibration
        loop.prepared.meta[KEY] = states_of(loop.body)
        inputs = {n.name: n for n in loop.prepared.graph.find_nodes(op="placeholder")}
        outside = observer_of(prepared, node.args[0])
        if outside is not None:
            inside = _behind(loop.prepared, inputs["x"])
            if isinstance(outside, RangeObserver) and _is_only_read_by(prepared, outside, node):
                outside.saturation = getattr(inside, "saturation", None)
            _exchange(loop.prepared, inside, outside)
        for reader in [user for user in node.users if _index(user) == 0]:
            outside, inside = _behind(prepared, reader), _behind(loop.prepared, inputs["state_0"])
            if outside is None or inside is None or outside is inside or outside.dtype is not inside.dtype:
                continue
            # Fixed qparams and other kinds of ranges must be kept for a state.
            if is_fixed(inside) or not is_of_extremes(outside):
                _exchange(prepared, outside, inside)
                for _, other in loops_of(prepared):
                    if other.prepared is not None:
                        _exchange(other.prepared, outside, inside)
            else:
                if isinstance(outside, RangeObserver):  # its limits are those of the readers outside
                    outside.within, outside.saturation = RangeObserver.within, None
                _exchange(loop.prepared, inside, outside)


def convert_loops(prepared: GraphModule, convert: Callable[[GraphModule], GraphModule]) -> None:
    """Quantize the step of each loop of a calibrated module with a function such as `convert_pt2e`."""
    for _, loop in loops_of(prepared):
        if loop.prepared is None:
            continue
        states = states_of(loop.body)
        body = convert(loop.prepared)
        body.meta[KEY] = states
        integer_states(body)
        integer_io = to_integer_io(body)
        LOOP_QPARAMS.say(body, tuple(map(stored_as, (*integer_io.inputs, *states_of(body).values))))
        loop.body, loop.prepared = body, None


def _as_integers(module: GraphModule, view: ProgramView, loop: Node, source: object, qparams: Edge) -> Any:
    """Return an operand of a loop as integers with these qparams."""
    assert isinstance(source, Node)
    if (integers := integers_behind(source)) is not source and Edge.of(source) == qparams:
        return integers
    known = view.constant(source)
    if known is not None:
        return add_constant(module, loop, _QUANTIZE(known.detach(), *qparams), "first_state")
    with loop.graph.inserting_before(loop):
        return add_quantize(source, qparams)


def integer_loops(module: GraphModule) -> None:
    """Convert inputs and outputs of loops to integers, in place.

    p8 -> dequantize -> loop -> y -> quantize -> y8        p8 -> loop -> y8
    """
    found = [(node, loop) for node, loop in loops_of(module) if LOOP_QPARAMS.is_said(loop.body)]
    for node, loop in found:
        graph, all_qparams, view = module.graph, loop.all_qparams, ProgramView(module)
        node.args = tuple(
            _as_integers(module, view, node, x, qparams) for x, qparams in zip(node.args, all_qparams, strict=True)
        )
        for reader in [user for user in node.users if _index(user) is not None]:
            qparams = all_qparams[max(_index(reader) or 0, 1)]
            reader.meta["val"] = reader.meta["val"].to(qparams.torch_dtype)
            with graph.inserting_after(reader):
                floats = add_dequantize(reader, qparams)
            for user in [u for u in reader.users if u is not floats]:
                user.replace_input_with(reader, floats)
            for user in [u for u in quantizes_of(floats) if Edge.of(u) == qparams]:
                user.replace_all_uses_with(reader)
                graph.erase_node(user)
    clean(module, bool(found))


def _index(node: Node) -> int | None:
    """Return the index of the result that a node takes from a loop."""
    return place_of(node) if node.target is operator.getitem else None


def _behind(module: GraphModule, node: Node) -> Observer | None:
    """Return the first observer that reads a value."""
    return next((o for user in node.users if (o := observer_of(module, user)) is not None), None)


def _is_only_read_by(module: GraphModule, observer: Observer, reader: Node) -> bool:
    """Return True if a node alone reads the values of an observer, possibly moved."""
    seen = {node for node, own in observers_in(module).items() if own is observer}
    readers = {user for node in seen for user in node.users} - seen - {reader}
    return all(moves(own) and seen.issuperset(own.users) for own in readers)


def _exchange(module: GraphModule, old: Observer | None, new: Observer) -> None:
    for name, found in list(module.named_modules(remove_duplicate=False)):
        if found is old and old is not new:
            module.set_submodule(name, new)
