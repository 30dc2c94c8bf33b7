"""Qparams that are known before calibration: those that an operator prescribes for its result, possibly moved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import Node

from micronpu.frontend.importer import NodeArguments, known_import
from micronpu.frontend.program import arguments, is_float32, overload_name
from micronpu.ir.lowering import Capabilities
from micronpu.ir.op import NewValues, OutputQuantization, QuantizationRule
from micronpu.ir.registry import AtenImport
from micronpu.ops.softmax import LONG, SOFTMAX
from micronpu.quantize.concat_groups import PartObserver
from micronpu.quantize.config import FINER, QuantizationConfig
from micronpu.quantize.masks import given_qparams_of
from micronpu.quantize.observers.finer import FinerObserver
from micronpu.quantize.specs import KEY, QuantizationSpec, Spec


def rule_of(node: Node, entry: AtenImport) -> QuantizationRule:
    """Return the annotation rule of a node, which may depend on its arguments."""
    rule = entry.quantization
    return rule(NodeArguments(node)) if callable(rule) else rule


def dictated(node: Node, able: Capabilities) -> tuple[Node, QuantizationRule] | None:
    """Return the operator that prescribes the qparams of a value, possibly moved or selected, and its rule; None
    without."""
    while (entry := known_import(node)) is not None and able.computes(entry.overload):
        rule = rule_of(node, entry)
        if rule.output is OutputQuantization.FIXED:
            return node, rule
        operands = [n for n in node.all_input_nodes if is_float32(n)]
        if rule.output is not OutputQuantization.SHARED or len(operands) != 1:
            return None
        if rule.new_values is not NewValues.NONE and whole_qparams_of(operands[0], able) is not None:
            return None  # it was given different ones
        if (note := node.meta.get(KEY)) is not None and getattr(note.output_qspec, "observer", "") == FINER:
            return None  # it may have different ones
        (node,) = operands
    return None


def dictated_qparams(node: Node, rule: QuantizationRule, config: QuantizationConfig, able: Capabilities) -> Spec:
    """Return an operator's fixed qparams; for an int8 softmax over long rows a smaller scale, if int16 is available."""
    shape = node.meta["val"].shape
    long = overload_name(node) in SOFTMAX and len(shape) > 0 and shape[int(arguments(node)["dim"])] >= LONG
    return config.shares if long and able.has_int16 and config.may_share else config.fixed_activation(rule)


def kept_qparams(operand: Node, wanted: QuantizationSpec, config: QuantizationConfig, able: Capabilities) -> Spec:
    """Return the spec with which an operator reads a value: the prescribed one, or else ``wanted``.

    Other qparams would only add a rounding, and two operands that are compared would have different ones.
    """
    source = dictated(operand, able)
    if source is None:
        return wanted
    qparams, annotation = dictated_qparams(*source, config, able), source[0].meta.get(KEY)
    if annotation is None or annotation.output_qspec != qparams:  # in float, or another quantizer's
        return wanted
    moved = wanted.qscheme == torch.per_tensor_symmetric and getattr(qparams, "zero_point", 1) != 0
    return wanted if moved else qparams


def whole_qparams_of(operand: Node, able: Capabilities) -> QuantizationRule | None:
    """Return the rule of a value whose qparams represent only whole numbers, such as booleans; None for others."""
    rule = given_qparams_of(operand)
    if rule is None:
        source = dictated(operand, able)
        rule = None if source is None else source[1]
    return rule if rule is not None and rule.is_whole else None


def common_qparams_of(operands: list[Node]) -> QuantizationRule | None:
    """Return the rule of qparams that were given to all values; None if there are none, or several."""
    rules = [given_qparams_of(operand) for operand in operands]
    return rules[0] if rules and all(rule == rules[0] for rule in rules) else None


def observe_operands(places: Mapping[Any, Any]) -> None:
    """Connect the observers of averages and clamps with those of their operands.

    Args:
        places: observer by node or by (operand, reader) edge, as in torchao's preparation.
    """
    for node, seen in places.items():
        observer = seen.own if isinstance(seen, PartObserver) else seen
        if not isinstance(node, Node) or not isinstance(observer, FinerObserver):
            continue
        entry = known_import(node)
        if entry is not None and rule_of(node, entry).finer is not None:
            operand = node.all_input_nodes[0]
            of = places.get((operand, node), places.get(operand))
            both = isinstance(seen, PartObserver) and isinstance(of, PartObserver) and of.whole is seen.whole
            observer.observe_operand(of.own if both else of)  # which then passes values to the whole once
