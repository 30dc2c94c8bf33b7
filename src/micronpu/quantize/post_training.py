"""Post-training quantization of this package's annotations: observers, calibration, then quantize and dequantize.

The result equals that of `prepare_pt2e` and `convert_pt2e`, node by node and name by name, which tests compare.
torchao, whose import takes as long as compiling a small network, is not needed.
"""

from __future__ import annotations

import types
from collections.abc import Collection, Mapping
from typing import Any, NoReturn, TypeAlias

import torch
from torch import nn
from torch.fx import GraphModule, Node
from torch.fx.traceback import NodeSource, NodeSourceAction

from micronpu.frontend.facts import EXTREMES, SCOPES
from micronpu.frontend.run import evaluate
from micronpu.frontend.tensors import constant_nodes, free_name
from micronpu.quantize.nodes import NodeValues, moves, observer_of
from micronpu.quantize.solver.groups import Observer, PartObserver, observers_of
from micronpu.quantize.solver.neighbours import observe_for_neighbours, share_states
from micronpu.quantize.specs import KEY, QuantizationAnnotation, noted
from micronpu.upstream.torch import FakeTensor

_decomposed = torch.ops.quantized_decomposed
_QUANTIZE = (_decomposed.quantize_per_tensor.default, _decomposed.quantize_per_channel.default)
_DEQUANTIZE = (_decomposed.dequantize_per_tensor.default, _decomposed.dequantize_per_channel.default)

Observers: TypeAlias = dict[Any, Observer]
"""Observers of nodes and of (operand, reader) edges."""


def scopes(model: GraphModule) -> dict[str, str]:
    """Return the last part of each node's module path, by which torchao names its constants."""
    found = {}
    for node in model.graph.nodes:
        stack = node.meta.get("nn_module_stack")
        found[node.name] = str(list(stack.values())[-1][0]).rpartition(".")[2] if stack else ""
    return found


def is_prepared(model: GraphModule) -> bool:
    """Return True if a module has the observers of `prepared`."""
    return SCOPES.is_said(model)


# ---------------------------------------------------------------- observers


def prepared(values: NodeValues, names: Mapping[str, str]) -> GraphModule:
    """Return an annotated model with observers; the graph is changed in place.

    Args:
        values: of the model.
        names: `scopes` of the model before it was rewritten.
    """
    model, notes = values.model, values.notes()
    observers = observers_of(notes)
    observe_for_neighbours(values, observers)
    share_states(values, observers)
    inserter = _Inserter(model, values.nodes(observers))
    for value in notes:
        inserter.observe(values.node_of[value])
    made = GraphModule(model, model.graph)
    SCOPES.say(made, dict(names))
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

    def _observed(self, node: Node, argument: Any) -> Any:
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
    names = SCOPES.take(model)
    assert names is not None, "of `prepared`"
    modules = dict(model.named_modules(remove_duplicate=False))
    for node in list(model.graph.nodes):
        if node.op == "call_module" and isinstance(modules[str(node.target)], Observer):
            _convert(model, node, modules[str(node.target)], names)
    model.graph.eliminate_dead_code()
    _split_dequantizes(model)
    for node, note in noted(model.graph.nodes).items():
        _keep_places(node, note)
    _fold_weights(model)
    made = GraphModule(model, model.graph)  # with what the graph still reads
    for mode in ("train", "eval"):
        setattr(made, mode, types.MethodType(_refuse(mode), made))
    return made


def _refuse(mode: str) -> Any:
    def refuse(self: GraphModule, *_: Any) -> NoReturn:
        raise NotImplementedError(f"Calling {mode}() is not supported yet.")

    return refuse


def _convert(model: GraphModule, node: Node, observer: Any, names: Mapping[str, str]) -> None:
    """x -> observer -> y        x -> quantize -> dequantize -> y"""
    graph, source = model.graph, node.args[0]
    assert isinstance(source, Node)
    scale, zero_point = observer.calculate_qparams()
    per_channel = observer.qscheme == torch.per_channel_symmetric
    with graph.inserting_before(node):
        numbers: list[Any]
        if per_channel:
            prefix = names.get(source.name, "").replace(".", "_")
            buffers = [add_buffer(model, scale, f"{prefix}_scale")]
            buffers += [add_buffer(model, zero_point, f"{prefix}_zero_point")]
            numbers = [*buffers, int(observer.ch_axis)]
        else:
            numbers = [float(scale), int(zero_point)]
        numbers += [observer.quant_min, observer.quant_max, observer.dtype]
        quantized = graph.call_function(_QUANTIZE[per_channel], (source, *numbers))
        value = source.meta.get("val")
        dtype = torch.float32 if value is None else value.dtype
        options = {} if dtype == torch.float32 else {"out_dtype": dtype}
        dequantized = graph.call_function(_DEQUANTIZE[per_channel], (quantized, *numbers), options)
        node.replace_all_uses_with(dequantized)
        if (extremes := getattr(observer, "extremes", None)) is not None:
            EXTREMES.say(quantized, (quantized.name, extremes))
        origin = NodeSource(None, "replace_observer_with_quantize_dequantize_node", [NodeSourceAction.CREATE])
        origin.node_info = NodeSource.NodeInfo(node.name, str(node.target), id(graph))
        origin.from_node = list(node.meta.get("from_node", ()))  # torch itself copies all that these refer to
        quantized.meta["from_node"], dequantized.meta["from_node"] = [origin], [origin]
        graph.erase_node(node)


def add_buffer(model: GraphModule, value: torch.Tensor, prefix: str) -> Node:
    """Add a copy of a tensor as a buffer, read where the graph inserts; no node of it has a shape, as in torchao."""
    name = free_name(model, prefix)
    model.register_buffer(name, value.detach().clone())
    return model.graph.get_attr(name)


def _readers(node: Node) -> list[Node]:
    """Return the readers of a value that read more than its sizes."""
    return [user for user in node.users if not isinstance(user.meta.get("val"), int | torch.SymInt)]


def _split_dequantizes(model: GraphModule) -> None:
    """Give every annotated reader its own dequantize."""
    for node in model.graph.nodes:
        if node.target not in _DEQUANTIZE or len(readers := _readers(node)) <= 1:
            continue
        for user in readers:
            note = user.meta.get(KEY)
            if not isinstance(note, QuantizationAnnotation) or not (note.input_qspec_map or note.output_qspec):
                continue
            with model.graph.inserting_after(node):
                own = model.graph.node_copy(node)
            user.replace_input_with(node, own)


def _keep_places(node: Node, note: QuantizationAnnotation) -> None:
    """Copy the user's source line to the dequantizes before a node and the quantize after it."""
    for operand in note.input_qspec_map:
        dequantize = next((a for a in node.args if isinstance(a, Node) and _stems_from(a, operand)), None)
        if dequantize is None:
            continue
        quantize = dequantize.args[0]
        if not isinstance(quantize, Node) or quantize.target not in _QUANTIZE:
            continue
        chain, source = [quantize], quantize.args[0]
        # Operators that only move a weight before its quantize keep the weight's source.
        while isinstance(source, Node) and moves(source):
            chain.append(source)
            source = source.args[0]
        if isinstance(source, Node) and source.op == "get_attr":
            for step in chain:
                _copy_place(source, step)
        _copy_place(node, dequantize)
    if note.output_qspec is not None and (users := _readers(node)) and users[-1].target in _QUANTIZE:
        _copy_place(node, users[-1])


def _stems_from(node: Node, operand: Node) -> bool:
    if node.target not in _DEQUANTIZE:
        return False
    while node.target in _QUANTIZE or node.target in _DEQUANTIZE:
        (node,) = node.all_input_nodes[:1]
    return node is operand


def _copy_place(source: Node, target: Node) -> None:
    for key in ("stack_trace", "quantization_tag"):
        if key in source.meta:
            target.meta[key] = source.meta[key]


def _fold_weights(model: GraphModule) -> None:
    """weights -> quantize        integers"""
    constants = _without_dequantized(model)
    count = 0
    for node in list(model.graph.nodes):
        if node.target not in _QUANTIZE or not isinstance(node.args[0], Node) or node.args[0] not in constants:
            continue
        value = evaluate(model, node)
        while hasattr(model, name := f"_frozen_param{count}"):
            count += 1
        with model.graph.inserting_before(node):
            made = model.graph.create_node("get_attr", name, (), {})
        node.replace_all_uses_with(made)
        made.meta.update(node.meta)
        model.graph.erase_node(node)
        made.name = node.name
        model.register_buffer(name, value)
    model.graph.eliminate_dead_code()


def _without_dequantized(model: GraphModule) -> set[Node]:
    """Return constants that do not depend on a dequantize."""
    constants = constant_nodes(model)
    found: set[Node] = set()
    for node in model.graph.nodes:
        if node in constants and node.target not in _DEQUANTIZE and found.issuperset(node.all_input_nodes):
            found.add(node)
    return found


# ---------------------------------------------------------------- parts of concatenations


def settle_concat_groups(prepared: GraphModule) -> None:
    """Choose for each part between its own qparams and the group's, by calibration, in place."""
    parts: dict[PartObserver, list[Node]] = {}
    for node in prepared.graph.nodes:
        if isinstance(module := observer_of(prepared, node), PartObserver):
            parts.setdefault(module, []).append(node)
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
    for node in reversed([n for n in prepared.graph.nodes if n.op == "call_module"]):  # the first reader's is last
        source, observer = node.args[0], modules[str(node.target)]
        assert isinstance(source, Node)
        same = source.op == "call_module" and modules[str(source.target)] is observer
        first = source if same else known.setdefault((source, id(observer)), node)
        if first is not node:
            node.replace_all_uses_with(first)
            prepared.graph.erase_node(node)
    prepared.recompile()


def _join_again(prepared: GraphModule, part: PartObserver, nodes: Collection[Node]) -> None:
    """x -> own -> cat        x -> own -> whole -> cat"""
    for seen in nodes:
        value = seen.args[0]
        assert isinstance(value, Node)
        readers = [user for user in seen.users if (value.name, user.name) in part.edges]
        for reader in readers:
            prepared.add_module(name := free_name(prepared, "joint"), part.group)
            with prepared.graph.inserting_after(seen):
                made = prepared.graph.call_module(name, (seen,))
            reader.replace_input_with(seen, made)
    prepared.recompile()
