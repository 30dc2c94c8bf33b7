"""PT2E annotations, derived from the operators' definitions in `micronpu.ops`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.fx import GraphModule, Node

from micronpu.base.errors import UnsupportedError
from micronpu.frontend.constants import constant_nodes
from micronpu.frontend.facts import KEPT_OR_ZERO
from micronpu.frontend.importer import fused_kind, known_import
from micronpu.frontend.program import arguments, is_float32, is_float_cast
from micronpu.frontend.states import states_of
from micronpu.ir.lowering import Capabilities
from micronpu.ir.op import NewValues, OutputQuantization, QuantizationRule
from micronpu.ir.registry import AtenImport
from micronpu.quantize.config import FINER, SHARES, QuantizationConfig
from micronpu.quantize.folded_norms import batch_norm_behind
from micronpu.quantize.known_qparams import (
    common_qparams_of,
    dictated,
    dictated_qparams,
    kept_qparams,
    rule_of,
    whole_qparams_of,
)
from micronpu.quantize.masks import give_qparams_to_sums, given_qparams_of
from micronpu.quantize.specs import (
    KEY,
    QuantizationAnnotation,
    QuantizationSpec,
    SharedQuantizationSpec,
    Spec,
)
from micronpu.quantize.states import annotate_new_values, annotate_states
from micronpu.quantize.thresholds import AVERAGE_MARGIN, SMALL_OPERAND


def annotate(
    model: GraphModule,
    config_of: Callable[[Node], QuantizationConfig | None],
    *,
    capabilities: Capabilities | None = None,
    io: QuantizationConfig | None = None,
) -> None:
    """Annotate every operator that micronpu knows, in place.

    Args:
        config_of: returns the configuration of a node; None leaves it float.
        capabilities: of the device; default: those that every device has.
        io: configuration of the program's inputs and outputs; None leaves them to their readers and producers.
    """
    constants, able = constant_nodes(model), capabilities or Capabilities()
    give_qparams_to_sums(model)
    annotate_states(model, config_of)
    if io is not None:
        _annotate_io(model, io, able)
    for node in model.graph.nodes:
        if KEY in node.meta or node in constants:  # constant expressions are quantized as a whole where they are read
            continue
        entry = known_import(node)
        if entry is not None and able.computes(entry.overload):
            config = config_of(node)
            if config is not None:
                _annotate_node(node, entry, config, config_of, constants, able)
    annotate_new_values(model, config_of)


def _annotate_io(model: GraphModule, io: QuantizationConfig, able: Capabilities) -> None:
    """Quantize every float input and output of the program, independently of its readers and producers.

    Outputs of an operator with fixed qparams keep these: the values of a softmax in calibration do not determine later
    ones.
    """
    states = {state.node for state in states_of(model).values}
    for node in model.graph.nodes:
        if node.op == "placeholder" and is_float32(node) and KEY not in node.meta and node.name not in states:
            node.meta[KEY] = QuantizationAnnotation(output_qspec=io.input_activation)
        elif node.op == "output":
            results: dict[Node, Spec] = {}
            returned: list[Node] = []
            given = node.args[0][: len(node.args[0]) - len(states)] if states else node.args
            torch.fx.map_arg(given, returned.append)
            for result in filter(is_float32, dict.fromkeys(returned)):
                source = dictated(result, able)
                results[result] = io.io_activation if source is None else dictated_qparams(*source, io, able)
            node.meta[KEY] = QuantizationAnnotation(input_qspec_map=results)


def _operands(node: Node, entry: AtenImport, rule: QuantizationRule) -> list[Node] | None:
    """Return the values that a rule quantizes; None if one is missing, or no float."""
    names, given = dict(entry.arguments), arguments(node)
    found: list[Any] = []
    for name in rule.activations:
        operand = given.get(names.get(name, name))
        found += operand if isinstance(operand, (list, tuple)) else [operand]
    is_whole = bool(found) or not rule.activations
    return found if is_whole and all(isinstance(o, Node) and is_float32(o) for o in found) else None


def _symmetric(operand: Node, config: QuantizationConfig, able: Capabilities) -> Spec:
    """Return the spec of an operand that needs zero point 0."""
    _make_symmetric(operand, config)
    return kept_qparams(operand, config.symmetric_activation, config, able)


def _annotate_node(
    node: Node,
    entry: AtenImport,
    config: QuantizationConfig,
    config_of: Callable[[Node], QuantizationConfig | None],
    constants: set[Node],
    able: Capabilities,
) -> None:
    rule, activation = rule_of(node, entry), config.activation
    operands, number = _operands(node, entry, rule), node if is_float32(node) else _cast_behind(node)
    if operands is None or number is None or (operands and constants.issuperset(operands)):
        return  # the last case, such as the transpose of a weight, is computed at compile time
    inputs: dict[Node, Spec] = {}
    if rule.weight:
        weight = arguments(node)[dict(entry.arguments).get(rule.weight, rule.weight)]
        if weight not in constants:
            return
        inputs[weight] = config.weight(rule.weight_axis)
    for operand in operands:
        _annotate_input(operand, config.input_activation)
    if rule.symmetric and not able.zero_points:
        inputs |= {operand: _symmetric(operand, config, able) for operand in operands}
    if KEPT_OR_ZERO.of(node) == node.name and operands[-1] not in constants:
        output = _qparams_of(operands[-1], node, activation, inputs)
        inputs.setdefault(operands[0], activation)
    else:
        output = _inputs_and_output(node, operands, rule, config, activation, inputs, constants, able)
    all_given_qparams = (
        {x: given_qparams_of(x) for x in operands} if rule.output is not OutputQuantization.SHARED else {}
    )
    inputs |= {x: config.fixed_activation(qparams) for x, qparams in all_given_qparams.items() if qparams is not None}
    if (given_qparams := given_qparams_of(node, moved=False)) is not None:
        output = config.fixed_activation(given_qparams)
    last = _last_of(node, number, entry, config_of)
    if output is activation and _is_output(last):
        output = config.io_activation
    if last is node:
        node.meta[KEY] = QuantizationAnnotation(input_qspec_map=inputs, output_qspec=output)
    else:
        node.meta[KEY] = QuantizationAnnotation(input_qspec_map=inputs)
        last.meta[KEY] = QuantizationAnnotation(output_qspec=output)


def _last_of(
    node: Node, number: Node, entry: AtenImport, config_of: Callable[[Node], QuantizationConfig | None]
) -> Node:
    """Return the node with the result of an operator and the operators fused into it: a batch norm, a clamp."""
    last = batch_norm_behind(node) or number
    clamp = _clamp_behind(last, entry)
    return clamp if clamp is not None and config_of(clamp) is not None else last


def _inputs_and_output(
    node: Node,
    operands: list[Node],
    rule: QuantizationRule,
    config: QuantizationConfig,
    activation: QuantizationSpec,
    inputs: dict[Node, Spec],
    constants: set[Node],
    able: Capabilities,
) -> Spec:
    """Add the specs of the operands; return that of the result, by default ``activation``."""
    if rule.output is OutputQuantization.SHARED:
        first = min(operands)
        if len(operands) == 1:
            return _shared(first, node, rule, config, inputs, able)
        if (given_qparams := common_qparams_of(operands)) is not None:
            inputs.update(dict.fromkeys(operands, config.fixed_activation(given_qparams)))
            return config.fixed_activation(given_qparams)
        # Operands of a concatenation share qparams that cover all of them, so fixed ones cannot be used. They refer to
        # the
        # operand that is computed first: torchao follows such references, and two concatenations of the same values in
        # different
        # orders must not form a cycle.
        inputs[first] = activation
        shared = SharedQuantizationSpec((first, node))
        for operand in operands:
            if operand is not first:
                inputs[operand] = shared
        return shared
    for operand in operands:
        wanted = config.constant if operand in constants else kept_qparams(operand, activation, config, able)
        inputs.setdefault(operand, wanted)
    if rule.output is OutputQuantization.FIXED:
        return dictated_qparams(node, rule, config, able)
    return activation


def _shared(
    operand: Node,
    node: Node,
    rule: QuantizationRule,
    config: QuantizationConfig,
    inputs: dict[Node, Spec],
    able: Capabilities,
) -> Spec:
    """Return the spec of a result that shares its operand's qparams unless they are too coarse; add that of the
    operand."""
    whole, may_be_finer = whole_qparams_of(operand, able), rule.finer is not None and not config.is_qat
    if rule.new_values is not NewValues.NONE and _is_coarser(operand, config):
        inputs[operand] = config.activation
        return SharedQuantizationSpec((operand, node))
    if whole is None or rule.new_values is NewValues.NONE:
        output = _qparams_of(operand, node, config.activation, inputs)
        if (given_qparams := given_qparams_of(operand)) is not None:
            inputs[operand] = config.fixed_activation(given_qparams)
        return _finer(operand, rule, config) if may_be_finer and config.activations == "int8" else output
    finer = config.between(whole) if rule.new_values is not NewValues.ANY else None
    if may_be_finer and rule.new_values is NewValues.BETWEEN:
        inputs[operand] = config.fixed_activation(whole)
        qparams = None if finer is None else (finer.scale, finer.zero_point)
        own = _finer(operand, rule, config)
        return replace(own, options=(*own.options, ("operand_qparams", qparams)))
    inputs[operand] = config.activation if finer is None else finer
    return SharedQuantizationSpec((operand, node))


def _finer(operand: Node, rule: QuantizationRule, config: QuantizationConfig) -> QuantizationSpec:
    """Return the spec of a result that has its own qparams if their scale is much smaller."""
    assert rule.finer is not None
    times = rule.finer[math.prod(n for n in operand.meta["val"].shape if isinstance(n, int)) > SMALL_OPERAND]
    return config.finer(times, AVERAGE_MARGIN if rule.new_values is NewValues.BETWEEN else 1.0)


def _is_coarser(operand: Node, config: QuantizationConfig) -> bool:
    """Return True if a value that is read in int16 was computed in int8."""
    annotation = operand.meta.get(KEY)
    while annotation is not None and isinstance(annotation.output_qspec, SharedQuantizationSpec):
        place = annotation.output_qspec.edge_or_node
        annotation = place.meta.get(KEY) if isinstance(place, Node) and place is not operand else None
    spec = annotation.output_qspec if annotation is not None else None
    return config.dtype is torch.int16 and spec is not None and spec.dtype is torch.int8


def _qparams_of(operand: Node, node: Node, activation: QuantizationSpec, inputs: dict[Node, Spec]) -> Spec:
    """Return the spec of a result that shares its operand's qparams, fixed or not; add that of the operand."""
    before = operand.meta.get(KEY)
    if before is not None and before.output_qspec is not None:
        inputs[operand] = SharedQuantizationSpec(operand)
        return SharedQuantizationSpec(operand)
    inputs[operand] = activation
    return SharedQuantizationSpec((operand, node))


def _annotate_input(operand: Node, activation: QuantizationSpec) -> None:
    """Quantize an input of the program once, for all its readers."""
    if operand.op == "placeholder" and KEY not in operand.meta:
        operand.meta[KEY] = QuantizationAnnotation(output_qspec=activation)


def _is_output(node: Node) -> bool:
    """Return True if the program returns the value, possibly moved."""
    for user in node.users:
        entry = known_import(user)
        if user.op == "output" or (entry is not None and entry.moves_only and _is_output(user)):
            return True
    return False


def _make_symmetric(operand: Node, config: QuantizationConfig) -> None:
    """Use zero point 0 for a value if all its readers need that, such as queries, keys and values.

    Otherwise each of them would requantize it, which costs an operator and a rounding.
    """
    node = operand
    while _all_want_zero(node) and (annotation := node.meta.get(KEY)) is not None:
        spec = annotation.output_qspec
        if not (isinstance(spec, SharedQuantizationSpec) and isinstance(spec.edge_or_node, Node)):
            affine = isinstance(spec, QuantizationSpec) and spec.qscheme == torch.per_tensor_affine
            if affine and spec.dtype is config.dtype and spec.observer not in (SHARES, FINER):
                annotation.output_qspec = config.symmetric_activation
            return
        node = spec.edge_or_node


def _all_want_zero(node: Node) -> bool:
    """Return True if only operators whose operands need zero point 0 read a value, possibly moved."""
    for user in node.users:
        entry = known_import(user)
        if entry is None or not (rule_of(user, entry).symmetric or (entry.moves_only and _all_want_zero(user))):
            return False
    return True


def _clamp_behind(node: Node, entry: AtenImport) -> Node | None:
    """Return the clamp that is fused into an operator with the result ``node``, or None."""
    if not entry.fuses or len(node.users) != 1:
        return None
    (user,) = node.users
    following = known_import(user)
    if following is None or not following.is_activation:
        return None
    try:
        fused_kind(user)
    except UnsupportedError:
        return None
    return user


def _cast_behind(node: Node) -> Node | None:
    """Return the cast to float of an operator's boolean or index, if nothing else reads that."""
    users = list(node.users)
    return users[0] if len(users) == 1 and is_float_cast(users[0]) else None
