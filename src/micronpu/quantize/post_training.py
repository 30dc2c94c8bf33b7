"""Post-training quantization of this package's annotations: observers, calibration, then quantize and dequantize.

The result equals that of `prepare_pt2e` and `convert_pt2e`, operator by operator, which tests compare.
torchao, whose import takes as long as compiling a small network, is not needed.
"""

from __future__ import annotations

import types
from collections.abc import Collection
from typing import Any, NoReturn, TypeAlias

import torch
from torch import nn
from torch.fx.traceback import NodeSource, NodeSourceAction

from micronpu.frontend.facts import DISTANCES, EXTREMES, PREPARED
from micronpu.frontend.graphs import GraphModule, Node, called_modules, operand
from micronpu.frontend.run import evaluate
from micronpu.frontend.tensors import constant_nodes, free_name
from micronpu.quantize.nodes import NodeValues
from micronpu.quantize.solver.groups import Observer, PartObserver, leave_selected, observers_of
from micronpu.quantize.solver.neighbours import distance_of, has_room, observe_for_neighbours, share_states
from micronpu.quantize.specs import KEY, QuantizationAnnotation
from micronpu.upstream.torch import FakeTensor

_decomposed = torch.ops.quantized_decomposed
_QUANTIZE = (_decomposed.quantize_per_tensor.default, _decomposed.quantize_per_channel.default)
_DEQUANTIZE = (_decomposed.dequantize_per_tensor.default, _decomposed.dequantize_per_channel.default)

Observers: TypeAlias = dict[Any, Observer]
"""Observers of nodes and of (operand, reader) edges."""


def is_prepared(model: GraphModule) -> bool:
    return PREPARED.of(model)


# ---------------------------------------------------------------- observers


def prepared(values: NodeValues) -> GraphModule:
    """Return an annotated model with observers; the graph is changed in place."""
    model, notes = values.model, values.notes()
    observers = observers_of(notes)
    observe_for_neighbours(values, observers)
    share_states(values, observers)
    leave_selected(observers)
    inserter = _Inserter(model, values.nodes(observers))
    for value in notes:
        inserter.observe(values.node_of[value])
    made = GraphModule(model, model.graph)
    PREPARED.say(made, True)
    DISTANCES.say(made, tuple(v.name for v in values.returned if distance_of(v) and has_room(observers.get(v))))
    return made


class _Inserter:
    """Inserts calls of observers into a graph, in place."""

    def __init__(self, model: GraphModule, observers: Observers) -> None:
        self._model = model
        self._observers = observers
        self._modules: dict[Node, Observer] = {}
        self._count = 0

    def observe(self, node: Node) -> None:
        """Observe operands and result of an annotated node."""
        node.args = tuple(self._observed(node, argument) for argument in node.args)
        if not isinstance(node.meta.get("val"), FakeTensor) or node not in self._observers:
            return
        made = self._insert(node, self._observers[node])
        if "from_node" in node.meta:
            made.meta["from_node"] = node.meta["from_node"]
        for user in list(node.users):
            if user is not made:
                user.replace_input_with(node, made)

    def _observed(self, node: Node, argument: object) -> Any:
        if isinstance(argument, (list, tuple)):
            return type(argument)([self._observed(node, inner) for inner in argument])
        if not isinstance(argument, Node):
            return argument
        source = argument
        while source in self._modules:
            (source,) = source.all_input_nodes
        observer = self._observers.get((source, node))
        known = self._observers.get(source)
        if observer is None or observer is known or (isinstance(known, PartObserver) and known.group is observer):
            return argument
        for user in argument.users:
            if self._modules.get(user) is observer:
                return user
        return self._insert(argument, observer)

    def _insert(self, node: Node, observer: Observer) -> Node:
        while hasattr(self._model, name := f"activation_post_process_{self._count}"):
            self._count += 1
        self._model.add_module(name, observer)
        with self._model.graph.inserting_after(node):
            made = self._model.graph.create_node("call_module", name, (node,), {})
        self._modules[made] = observer
        return made


# ---------------------------------------------------------------- conversion


def converted(model: GraphModule) -> GraphModule:
    """Return a calibrated model with quantize and dequantize instead of observers; the graph is changed in place."""
    PREPARED.take(model)
    constants = constant_nodes(model)
    for node, observer in list(called_modules(model, nn.Module)):
        if isinstance(observer, Observer):
            _convert(model, node, observer, node.args[0] in constants)
    model.graph.eliminate_dead_code()
    made = GraphModule(model, model.graph)  # with what the graph still reads
    DISTANCES.say(made, DISTANCES.of(model))
    for mode in ("train", "eval"):
        setattr(made, mode, types.MethodType(_refuse(mode), made))
    return made


def _refuse(mode: str) -> Any:
    def refuse(self: GraphModule, *_: object) -> NoReturn:
        raise NotImplementedError(f"Calling {mode}() is not supported yet.")

    return refuse


def _convert(model: GraphModule, node: Node, observer: Any, is_constant: bool) -> None:
    """Replace an observer; each annotated reader has its own dequantize, and a constant is stored as integers.

    x -> observer -> (a, b, c)        x -> quantize -> (dequantize -> a, dequantize -> (b, c))
    """
    graph, source = model.graph, operand(node)
    scale, zero_point = observer.calculate_qparams()
    per_channel = observer.qscheme == torch.per_channel_symmetric
    origin = NodeSource(None, "replace_observer_with_quantize_dequantize_node", [NodeSourceAction.CREATE])
    origin.node_info = NodeSource.NodeInfo(node.name, str(node.target), id(graph))
    origin.from_node = list(node.meta.get("from_node", ()))  # torch itself copies all that these refer to
    readers = [user for user in node.users if not isinstance(user.meta.get("val"), int | torch.SymInt)]  # not of sizes
    own = dict.fromkeys(user for user in readers if _is_annotated(user)) if len(readers) > 1 else {}
    with graph.inserting_before(node):
        numbers: list[Any] = []
        if per_channel:
            numbers += [add_buffer(model, scale, "scale"), add_buffer(model, zero_point, "zero_point")]
            numbers += [int(observer.ch_axis)]
        else:
            numbers += [float(scale), int(zero_point)]
        numbers += [observer.quant_min, observer.quant_max, observer.dtype]
        if is_constant:
            integers = _QUANTIZE[per_channel](*evaluate(model, (source, *numbers)))
            quantized = add_buffer(model, integers, "integers")
        else:
            quantized = graph.call_function(_QUANTIZE[per_channel], (source, *numbers))
        _note(quantized, origin, source)
        if (extremes := getattr(observer, "extremes", None)) is not None:
            EXTREMES.say(quantized, (quantized.name, extremes))
        dtype = getattr(source.meta.get("val"), "dtype", torch.float32)
        options = {} if dtype == torch.float32 else {"out_dtype": dtype}
        for users in ([user for user in node.users if user not in own], *([user] for user in reversed(own))):
            if users:
                made = graph.call_function(_DEQUANTIZE[per_channel], (quantized, *numbers), options)
                _note(made, origin, users[0])
            for user in users:
                user.replace_input_with(node, made)
    graph.erase_node(node)


def _is_annotated(node: Node) -> bool:
    note = node.meta.get(KEY)
    return isinstance(note, QuantizationAnnotation) and bool(note.input_qspec_map or note.output_qspec)


def _note(made: Node, origin: NodeSource, place: Node) -> None:
    """Note what a node was made of, and the user's source line."""
    made.meta["from_node"] = [origin]
    if "stack_trace" in place.meta:
        made.meta["stack_trace"] = place.meta["stack_trace"]


def add_buffer(model: GraphModule, value: torch.Tensor, prefix: str) -> Node:
    """Add a copy of a tensor as a buffer, read where the graph inserts; no node of it has a shape, as in torchao."""
    name = free_name(model, prefix)
    model.register_buffer(name, value.detach().clone())
    return model.graph.get_attr(name)


# ---------------------------------------------------------------- parts of concatenations


def settle_concat_groups(prepared: GraphModule) -> None:
    """Choose for each part between its own qparams and the group's, by calibration, in place."""
    parts: dict[PartObserver, list[Node]] = {}
    for node, part in called_modules(prepared, PartObserver):
        parts.setdefault(part, []).append(node)
    for part, nodes in parts.items():
        kept: nn.Module = part.own if part.is_fine else part.group
        for name in {str(node.target) for node in nodes}:
            setattr(prepared, name, kept)
        if kept is part.own:
            _join_again(prepared, part, nodes)
    if parts:
        _drop_repeated(prepared)


def _drop_repeated(prepared: GraphModule) -> None:
    """x -> whole -> whole -> cat        x -> whole -> cat, and so for two that read the same value"""
    modules = dict(prepared.named_modules(remove_duplicate=False))
    known: dict[tuple[Node, int], Node] = {}
    for node, observer in reversed(list(called_modules(prepared, nn.Module))):  # the first reader's is last
        source = operand(node)
        same = source.op == "call_module" and modules[str(source.target)] is observer
        first = source if same else known.setdefault((source, id(observer)), node)
        if first is not node:
            node.replace_all_uses_with(first)
            prepared.graph.erase_node(node)
    prepared.recompile()


def _join_again(prepared: GraphModule, part: PartObserver, nodes: Collection[Node]) -> None:
    """x -> own -> cat        x -> own -> whole -> cat"""
    for seen in nodes:
        value = operand(seen)
        readers = [user for user in seen.users if (value.name, user.name) in part.edges]
        for reader in readers:
            prepared.add_module(name := free_name(prepared, "joint"), part.group)
            with prepared.graph.inserting_after(seen):
                made = prepared.graph.call_module(name, (seen,))
            reader.replace_input_with(seen, made)
    prepared.recompile()
