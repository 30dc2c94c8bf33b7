"""Facts about nodes of a float program in torch.fx, and its values as the solver sees them."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from micronpu.base.errors import UnsupportedError
from micronpu.frontend.facts import IS_STEP, KEPT_OR_ZERO, QPARAMS, SETTING, SIGN_COUNTS
from micronpu.frontend.graphs import GraphModule, Node, findings, operand
from micronpu.frontend.importer import NodeArguments, known_import
from micronpu.frontend.program import arguments, is_float32, is_float_cast, origin_of, overload_name, overload_of
from micronpu.frontend.run import Function, called, elementwise
from micronpu.frontend.tensors import attribute, constant_nodes, number, results_of, state_ends
from micronpu.ir.facts import ANY, Form, Interval
from micronpu.ir.lowering import Capabilities, facts_of
from micronpu.ir.op import QuantizationRule, own_qparams
from micronpu.ir.registry import AtenImport
from micronpu.ir.window import Activation
from micronpu.ops import facts
from micronpu.ops.clamps import clamp_bounds
from micronpu.ops.elementwise import EXTREMA
from micronpu.ops.normalization import BATCH_NORM
from micronpu.ops.softmax import LONG, SOFTMAX
from micronpu.quantize.config import QuantizationConfig
from micronpu.quantize.observers import is_observer
from micronpu.quantize.solver.requirements import requirements
from micronpu.quantize.solver.values import Place, State, Value, Values
from micronpu.quantize.specs import KEY, QuantizationAnnotation, SharedQuantizationSpec, noted
from micronpu.quantize.thresholds import SATURATED


def form_of(x: object) -> Form | None:
    """Return the function of its operands that a node computes, see `micronpu.ops.facts`; None for other values."""
    return facts.form_of(overload_name(x), x.kwargs) if isinstance(x, Node) else None


def power_of(node: Node) -> float | None:
    """Return the exponent c of a node that is the power c of its operand."""
    name = overload_name(node)
    return facts_of(name).power_of(arguments(node)) if name else None


def line_of(model: GraphModule, node: Node) -> tuple[Any, float, float] | None:
    """Return (x, factor, addend) of a node that is ``factor * x + addend``."""
    name = overload_name(node)
    return facts.line_of(name, arguments(node), functools.partial(number, model)) if name else None


def rule_of(node: Node, entry: AtenImport) -> QuantizationRule:
    """Return the annotation rule of a node, which may depend on its arguments."""
    return entry.rule_for(NodeArguments(node))


def moves(node: Node) -> bool:
    """Return True for an operator that only moves or selects elements."""
    entry = known_import(node)
    return entry is not None and entry.moves_only


def observer_of(module: nn.Module, node: object) -> Any:
    """Return the observer, this package's or torchao's, that a node calls; None for anything else."""
    if not isinstance(node, Node) or node.op != "call_module":
        return None
    found = module.get_submodule(str(node.target))
    return found if is_observer(found) else None


def observers_in(module: GraphModule) -> dict[Node, Any]:
    """Return the nodes that call observers, with these."""
    return findings(module, functools.partial(observer_of, module))


def source_of(module: nn.Module, node: Node) -> Node:
    """Return the value behind observers."""
    while observer_of(module, node) is not None:
        node = operand(node)
    return node


def set_parameters(layer: Node, **values: Node | None) -> None:
    """Set the weight or bias of a layer."""
    args = list(layer.args) + [None] * (3 - len(layer.args))
    for name, value in values.items():
        args[("input", "weight", "bias").index(name)] = value
    layer.args = tuple(args)
    layer.kwargs = {k: v for k, v in layer.kwargs.items() if k not in values}


class _Reader:
    """Reads the facts of a node into its value."""

    def __init__(self, model: GraphModule, node: Node, index: int, is_constant: bool) -> None:
        self.model, self.node, self.overload = model, node, overload_name(node)
        known = node.meta.get("val")
        given_to, rule = QPARAMS.of(node)
        self.value = Value(
            node.name,
            index,
            shape=tuple(known.shape) if isinstance(known, torch.Tensor) else None,
            is_float=is_float32(node),
            is_input=node.op == "placeholder",
            is_output=node.op == "output",
            is_constant=is_constant,
            is_stored=node.op == "get_attr",
            is_kept_or_zero=KEPT_OR_ZERO.of(node) == node.name,
            sign_counts=SIGN_COUNTS.of(node) == node.name,
            rewrite_rule=rule if given_to == node.name else None,
            numbers=functools.partial(attribute, model, node),
            saturates_from=facts_of(self.overload).tail_of,
        )

    def link(self, of: Mapping[Node, Value]) -> None:
        """Look up the values that are read, and those that read this one."""
        self._of, value = of, self.value
        value.operands, value.readers = [of[n] for n in self.node.all_input_nodes], [of[n] for n in self.node.users]
        value.first, value.second = ([*map(self._value, self.node.args[:2]), None, None])[:2]
        value.axis_before = functools.partial(_axis_before, self.node, of)

    def _bounds_of(self, operand: Any) -> Interval:
        """Return the bounds of an operand, which is before this one in the program."""
        if isinstance(operand, int | float):
            return float(operand), float(operand)
        return ANY if (value := self._value(operand)) is None else value.bounds

    def _value(self, argument: object) -> Value | None:
        return self._of.get(argument) if isinstance(argument, Node) else None

    def read_facts(self, able: Capabilities) -> None:
        """Look up the facts about its operator, after all values are linked."""
        value, name, rank = self.value, self.overload, len(self.value.shape or ())
        given, entry, value.form = arguments(self.node), known_import(self.node), form_of(self.node)
        known = facts_of(name)
        value.is_bounded, value.is_whole, value.is_one_of = known.is_bounded, known.whole, name in EXTREMA
        value.power, value.jumps = known.power_of(given), known.jumps_of(given)
        value.bounds = known.range_of(given, self._bounds_of) if self.node.op == "call_function" else ANY
        if (line := facts.line_of(name, given, functools.partial(number, self.model))) is not None:
            value.line = (self._of[line[0]], *line[1:])
        if name in SOFTMAX and rank and value.shape is not None:
            value.softmax_axis = int(given["dim"]) % rank
            value.has_long_rows = value.shape[value.softmax_axis] >= LONG  # type: ignore[operator]
        if value.form is Form.ROW_MAXIMUM and given["keepdim"] and len(given["dim"]) == 1:
            value.maximum_axis = int(given["dim"][0]) % rank
        if entry is not None:
            value.is_known, value.is_supported = True, able.computes(entry.overload)
            value.moves, value.fuses, value.is_clamp = entry.moves_only, entry.fuses, entry.is_activation
            with contextlib.suppress(UnsupportedError):  # of numbers that are computed at run time: it stays in float
                self._read_rule(entry, given)
            selects = value.rule is not None and value.rule.selects and not known.moves
            value.picks = selects and value.shape is not None and len(value.float_operands) == 1

    def read_function(self) -> None:
        """State the facts about a function that several operators compute, see `micronpu.quantize.identities`."""
        value = self.value
        value.is_known = value.is_supported = True
        value.rule, value.quantized, value.result = own_qparams(), value.operands, value
        function = Function(self.node.args[1])  # type: ignore[arg-type]
        low, high = function.reads_within()
        is_wide = any(c is not None and c.activations == "int16" for c in SETTING.of(self.node))
        if not is_wide and (end := function.saturates_from(0.5 / 256)) is not None:  # half an LSB of int8
            low, high = max(low, -(1 + SATURATED) * end), min(high, (1 + SATURATED) * end)
        value.reads_within = low, high

    def _read_rule(self, entry: AtenImport, given: Mapping[str, object]) -> None:
        value = self.value
        if value.is_clamp:
            low, high = clamp_bounds(NodeArguments(self.node))
            value.clamps_to = -math.inf if low is None else low, math.inf if high is None else high
            value.reads_within = value.clamps_to
            kind = Activation.of_bounds(low, high)
            value.is_fusible = kind is not None and kind.can_fuse
        names, rule = dict(entry.arguments), rule_of(self.node, entry)
        value.rule = rule
        operands = [given.get(names.get(name, name)) for name in rule.activations]
        found = [x for given in operands for x in (given if isinstance(given, (list, tuple)) else [given])]
        values = [v for v in map(self._value, found) if v is not None and v.is_float]
        if len(values) == len(found) and (values or not rule.activations):
            value.quantized = values
        value.weights = self._value(given.get(names.get(rule.weight, rule.weight)))
        users = list(self.node.users)
        cast = users[0] if len(users) == 1 and is_float_cast(users[0]) else None
        plain = self.node if value.is_float else cast
        value.result = None if plain is None else self._of[batch_norm_behind(self.node) or plain]


def _axis_before(move: Node, of: Mapping[Node, Value], operand: Value, axis: int) -> int | None:
    # The strides of a view show this: steps along both axes have the same stride.
    assert operand.shape is not None
    others = [node for node in move.all_input_nodes if of[node] is not operand]
    if not all(isinstance(n.meta.get("val"), (int, torch.SymInt)) for n in others):
        return None
    before = torch.empty([_size(n) for n in operand.shape])  # not on meta: a move may name the device
    after = called(move, {n: _size(n.meta["val"]) if n in others else before for n in move.all_input_nodes})
    pointer = before.untyped_storage().data_ptr()
    if not isinstance(after, torch.Tensor) or after.untyped_storage().data_ptr() != pointer:
        return None
    size, stride = after.shape[axis], after.stride(axis)
    return next((a for a, n in enumerate(before.shape) if n == size > 1 and before.stride(a) == stride), None)


def _size(number: Any) -> int:
    """Return a size, or an example of one that is known only at run time."""
    return number if isinstance(number, int) else int(number.node.hint)


class NodeValues(Values):
    """The values of a float program in torch.fx.

    Attributes:
        of: the value of each node.
        node_of: the node of each value.
    """

    def __init__(self, model: GraphModule, able: Capabilities | None = None) -> None:
        self.model, self.able = model, able or Capabilities()
        constants = constant_nodes(model)
        readers = [_Reader(model, n, index, n in constants) for index, n in enumerate(model.graph.nodes)]
        self.of: dict[Node, Value] = {reader.node: reader.value for reader in readers}
        self.node_of: dict[Value, Node] = {reader.value: reader.node for reader in readers}
        for reader in readers:
            reader.link(self.of)
        for reader in readers:
            if reader.overload:
                reader.read_facts(self.able)
            elif reader.node.target is elementwise:
                reader.read_function()
        states = [
            State(s.name, self.of[old], self.of[new], s.initial.dtype is torch.float32, str(origin_of(new).source))
            for s, old, new in state_ends(model)
        ]
        super().__init__([*self.node_of], [self.of[node] for node in dict.fromkeys(results_of(model))], states)
        self.is_step = IS_STEP.of(model)

    def places(self, places: Mapping[Any, object]) -> dict[Place, Any]:
        """Return observers of nodes, and of (operand, reader) edges, by their values."""
        return {_mapped(place, self.of): observer for place, observer in places.items()}

    def nodes(self, places: Mapping[Place, object]) -> dict[Any, Any]:
        return {_mapped(place, self.node_of): observer for place, observer in places.items()}

    def notes(self) -> dict[Value, QuantizationAnnotation]:
        return {self.of[node]: _translated(note, self.of) for node, note in noted(self.model.graph.nodes).items()}


def _mapped(place: object, of: Mapping[Any, object]) -> Any:
    return tuple(of[end] for end in place) if isinstance(place, tuple) else of[place]


def _translated(note: QuantizationAnnotation, of: Mapping[Any, object]) -> QuantizationAnnotation:
    """Return the annotation of a value for that of its node, or the opposite."""

    def spec_of(spec: Any) -> Any:
        shared = isinstance(spec, SharedQuantizationSpec)
        return SharedQuantizationSpec(_mapped(spec.edge_or_node, of)) if shared else spec

    inputs = {of[operand]: spec_of(spec) for operand, spec in note.input_qspec_map.items()}
    return QuantizationAnnotation(inputs, spec_of(note.output_qspec))


def annotate(
    model: GraphModule,
    config_of: Callable[[Node], QuantizationConfig | None],
    *,
    capabilities: Capabilities | None = None,
    io: QuantizationConfig | None = None,
) -> NodeValues:
    """Annotate every operator that micronpu knows, in place, and return the values of the model.

    See `micronpu.quantize.solver.requirements`.
    """
    values = NodeValues(model, capabilities)
    others = {value: node.meta[KEY] for node, value in values.of.items() if KEY in node.meta}
    known = {value: QuantizationAnnotation({}, note.output_qspec) for value, note in others.items()}
    for value, note in requirements(values, lambda v: config_of(values.node_of[v]), values.able, io, known).items():
        own, is_other = _translated(note, values.node_of), note is known.get(value)
        if is_other:
            others[value].input_qspec_map.update(own.input_qspec_map)
        else:
            values.node_of[value].meta[KEY] = own
    return values


# ---------------------------------------------------------------- batch norms in training


def folded_batch_norm(x: torch.Tensor, *rest: Any) -> torch.Tensor:
    """Compute a batch norm under a name that no rewrite before annotation recognizes; `reveal` restores it."""
    return torch.batch_norm(x, *rest)


def batch_norm_behind(layer: Node) -> Node | None:
    """Return the simulated batch norm that reads the result of a layer, between the rewrite and `reveal`, or None."""
    if len(layer.users) != 1:
        return None
    (unfold,) = layer.users
    if unfold.op != "call_module" or len(unfold.users) != 1:
        return None
    (norm,) = unfold.users
    return norm if norm.target is folded_batch_norm else None


def reveal(model: GraphModule) -> None:
    """Turn hidden batch norms into ATen's, which torchao switches between training and evaluation."""
    hidden = model.graph.find_nodes(op="call_function", target=folded_batch_norm)
    for node in hidden:
        node.target = overload_of(BATCH_NORM)
    if hidden:
        model.recompile()


# ---------------------------------------------------------------- fused clamps


def takes_clamp(x: Any) -> bool:
    """Return True if a clamp can be fused into the operator that computes a value, which nothing else reads."""
    layer = x
    if x.target is folded_batch_norm:  # in training, layer -> unfold -> batch norm
        layer = x.args[0].args[0]
        assert batch_norm_behind(layer) is x
    entry = known_import(layer)
    return entry is not None and entry.fuses and len(x.users) == 1
