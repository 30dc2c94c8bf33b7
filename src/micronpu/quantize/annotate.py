"""PT2E annotations, read off the operators: what each means stands in `micronpu.ops` and only there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e import HistogramObserver, MinMaxObserver, PerChannelMinMaxObserver
from torchao.quantization.pt2e.quantizer import (
    FixedQParamsQuantizationSpec,
    QuantizationAnnotation,
    QuantizationSpec,
    QuantizationSpecBase,
    SharedQuantizationSpec,
)

from micronpu.errors import UnsupportedError
from micronpu.frontend.importer import NodeArguments, clamp_behind, fused_kind
from micronpu.frontend.program import arguments, overload_name
from micronpu.ops import ATEN_IMPORTS
from micronpu.ops.base import AtenImport, OutputQuantization, Quantization

KEY = "quantization_annotation"

# Smaller scales than this carry no information in a network whose values are around 1, and keep products of scales
# well inside float32.
ACTIVATION_EPS = 2**-16
# Small enough for a channel with tiny weights to keep its own grid.
WEIGHT_EPS = 2**-24


@dataclass(frozen=True)
class QuantizationConfig:
    """How tensors are quantized.

    Attributes:
        per_channel: one weight scale per output channel rather than one per tensor.
    """

    per_channel: bool = True

    @property
    def activation(self) -> QuantizationSpec:
        """int8, asymmetric, one scale per tensor; the range comes from a histogram of the calibration data."""
        return QuantizationSpec(
            dtype=torch.int8,
            quant_min=-128,
            quant_max=127,
            qscheme=torch.per_tensor_affine,
            is_dynamic=False,
            observer_or_fake_quant_ctr=HistogramObserver.with_args(eps=ACTIVATION_EPS),
        )

    def weight(self, axis: int) -> QuantizationSpec:
        """int8, symmetric in [-127, 127]; ``axis`` holds the output channels."""
        observer = PerChannelMinMaxObserver if self.per_channel else MinMaxObserver
        return QuantizationSpec(
            dtype=torch.int8,
            quant_min=-127,
            quant_max=127,
            qscheme=torch.per_channel_symmetric if self.per_channel else torch.per_tensor_symmetric,
            ch_axis=axis if self.per_channel else None,
            is_dynamic=False,
            observer_or_fake_quant_ctr=observer.with_args(eps=WEIGHT_EPS),
        )


def annotate(
    model: GraphModule, config: QuantizationConfig, wanted: Callable[[Node], bool] = lambda node: True
) -> None:
    """Annotates every operator that micronpu knows, in place.

    Args:
        wanted: which operators shall be quantized.
    """
    activation = config.activation
    for node in model.graph.nodes:
        if KEY in node.meta or not wanted(node):
            continue
        entry = ATEN_IMPORTS.get(overload_name(node))
        if entry is not None:
            _annotate_node(node, entry, config, activation)


def rule_of(node: Node, entry: AtenImport) -> Quantization:
    """The annotation rule of a node, which may depend on its arguments."""
    rule = entry.quantization
    return rule(NodeArguments(node)) if callable(rule) else rule  # type: ignore[arg-type]


def _annotate_node(node: Node, entry: AtenImport, config: QuantizationConfig, activation: QuantizationSpec) -> None:
    rule = rule_of(node, entry)
    names, given = dict(entry.arguments), arguments(node)
    operands: list[Node] = []
    for name in rule.activations:
        operand = given.get(names.get(name, name))
        operands += operand if isinstance(operand, (list, tuple)) else [operand]
    if not operands or not all(isinstance(o, Node) and _is_float(o) for o in operands) or not _is_float(node):
        return
    inputs: dict[Node, QuantizationSpecBase] = {}
    if rule.weight:
        weight = given[names.get(rule.weight, rule.weight)]
        if not isinstance(weight, Node) or weight.op != "get_attr":
            return
        inputs[weight] = config.weight(rule.weight_axis)
    for operand in operands:
        _annotate_input(operand, activation)
    output = _inputs_and_output(node, operands, rule, activation, inputs)
    clamp = clamp_behind(node)
    if clamp is not None and _can_fuse(clamp):
        node.meta[KEY] = QuantizationAnnotation(input_qspec_map=inputs, _annotated=True)
        clamp.meta[KEY] = QuantizationAnnotation(output_qspec=output, _annotated=True)
    else:
        node.meta[KEY] = QuantizationAnnotation(input_qspec_map=inputs, output_qspec=output, _annotated=True)


def _inputs_and_output(
    node: Node,
    operands: list[Node],
    rule: Quantization,
    activation: QuantizationSpec,
    inputs: dict[Node, QuantizationSpecBase],
) -> QuantizationSpecBase:
    """Fills in the specs of the operands; returns that of the result."""
    if rule.output is OutputQuantization.SHARED:
        first = operands[0]
        if len(operands) == 1:
            # Whatever range the operand has is the range of the result, a fixed one included.
            before = first.meta.get(KEY)
            if before is not None and before.output_qspec is not None:
                inputs[first] = SharedQuantizationSpec(first)
                return SharedQuantizationSpec(first)
        # Operands of a concatenation share a grid that covers all of them, so that no fixed one may dictate it.
        inputs[first] = activation
        shared = SharedQuantizationSpec((first, node))
        for operand in operands[1:]:
            if operand is not first:
                inputs[operand] = shared
        return shared
    for operand in operands:
        inputs[operand] = activation
    if rule.output is OutputQuantization.FIXED:
        assert rule.fixed is not None
        return FixedQParamsQuantizationSpec(
            dtype=torch.int8,
            scale=rule.fixed.scale[0],
            zero_point=rule.fixed.zero_point[0],
            quant_min=-128,
            quant_max=127,
            qscheme=torch.per_tensor_affine,
        )
    return activation


def _annotate_input(operand: Node, activation: QuantizationSpec) -> None:
    """Inputs of the program are quantized once, for all their readers."""
    if operand.op == "placeholder" and KEY not in operand.meta:
        operand.meta[KEY] = QuantizationAnnotation(output_qspec=activation, _annotated=True)


def _can_fuse(clamp: Node) -> bool:
    try:
        fused_kind(clamp)
    except UnsupportedError:
        return False
    return True


def _is_float(node: Node) -> bool:
    value: Any = node.meta.get("val")
    if isinstance(value, (tuple, list)) and value:
        value = value[0]
    if node.op == "get_attr" and value is None:
        return True
    return isinstance(value, torch.Tensor) and value.dtype == torch.float32
