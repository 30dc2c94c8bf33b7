"""Standardisation of inputs, (x - mean) / deviation, in float where quantizing the raw input would cost too much.

A pressure of 1013 +- 2 hPa on an int8 scale for 0 to 1020 has an LSB of 4 hPa: nothing is left of it.  The input is
float anyway, so that the program standardises first and quantizes the result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.fx import GraphModule, Node

from micronpu.frontend.facts import IN_FLOAT, SETTING
from micronpu.frontend.importer import known_import
from micronpu.frontend.program import arguments, overload_name
from micronpu.ir.way import Capabilities
from micronpu.ops.normalization import BATCH_NORMS
from micronpu.quantize.attributes import attribute
from micronpu.quantize.config import QuantizationConfig
from micronpu.quantize.running import Row
from micronpu.quantize.writer import GraphWriter

_AFFINE = ("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", *BATCH_NORMS)
_TIMES, _ENOUGH = 4.0, 40.0
"""Ratio of the noise of the raw input on one scale to that of the standardised one, and dB of the former, between which
the standardisation stays in float."""
_ROWS = 64
"""Calibration samples whose range is measured."""


def mark_standardisation(
    module: GraphModule, sequences: Sequence[Sequence[Row]], default: QuantizationConfig | None
) -> None:
    """Mark the operators that standardise an input and stay in float, in place; batch norms become two of them.

    Args:
        sequences: calibration data, of which the first sample of some sequences is measured.
        default: configuration of what no setting is for.
    """
    rows = [sequence[0] for sequence in sequences[:: max(1, len(sequences) // _ROWS)][:_ROWS] if sequence]
    if default is None or not rows:
        return
    inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
    for number, node in enumerate(inputs[: len(rows[0])]):
        if not rows[0][number].is_floating_point() or not rows[0][number].numel():
            continue
        for user in list(node.users):
            chain = _affine_chain(module, node, user)
            if chain and _loses(module, node, chain, [row[number] for row in rows], default):
                for part in chain:
                    _keep_in_float(module, part)
    module.graph.eliminate_dead_code()


def leave_in_float(model: GraphModule, default: QuantizationConfig | None) -> None:
    """Stamp marked operators as float, unless another setting than the default is for them, in place."""
    for node in model.graph.nodes:
        if IN_FLOAT.of(node) and SETTING.of(node) == (default,):
            SETTING.say(node, (None,))


def _affine_chain(module: GraphModule, x: Node, reader: Node) -> list[Node]:
    """The operators from the reader of an input on that compute a * x + b with constants, or only move it."""
    chain: list[Node] = []
    affine, value, node = 0, x, reader
    while True:
        entry, others = known_import(node), [n for n in node.all_input_nodes if n is not value]
        is_affine = overload_name(node) in _AFFINE and all(attribute(module, n) is not None for n in others)
        if overload_name(node) == "div.Tensor" or overload_name(node) in BATCH_NORMS:
            is_affine = is_affine and node.args[0] is value
        if not is_affine and (entry is None or not entry.moves_only or others):
            return chain[:affine]
        if list(node.args).count(value) != 1 or not isinstance(node.meta.get("val"), torch.Tensor):
            return chain[:affine]
        chain.append(node)
        affine = len(chain) if is_affine else affine
        if len(node.users) != 1:
            return chain[:affine]
        value, (node,) = node, node.users


def _loses(
    module: GraphModule, x: Node, chain: Sequence[Node], rows: Sequence[torch.Tensor], default: QuantizationConfig
) -> bool:
    """Whether the LSB of the raw input makes far more noise behind the operators than that of their result."""
    with torch.no_grad():
        raw = [row.detach().double() for row in rows]
        results = [_computed(module, x, chain, row) for row in raw]
        gain = float((_computed(module, x, chain, raw[0] + 1.0) - results[0]).square().mean().sqrt())
    (before, _), (after, size) = _range(raw), _range(results)
    if not 0.0 < after < math.inf or not 0.0 < before * gain < math.inf:
        return False
    steps = 255 if default.activations == "int8" else 65535
    decibels = 20 * math.log10(max(size, 1e-30) * math.sqrt(12) * steps / (before * gain))
    return before * gain > _TIMES * after and decibels < _ENOUGH


def _range(values: Sequence[torch.Tensor]) -> tuple[float, float]:
    """Width of the range of some values and zero, and their root mean square."""
    every = torch.cat([value.flatten() for value in values])
    return float(every.max().clamp(min=0) - every.min().clamp(max=0)), float(every.square().mean().sqrt())


def _computed(module: GraphModule, x: Node, chain: Sequence[Node], value: torch.Tensor) -> torch.Tensor:
    """What the operators make of an input, in float64."""
    for node in chain:
        known: dict[Node, Any] = {n: attribute(module, n) for n in node.all_input_nodes}
        known = {n: v.double() if v is not None and v.is_floating_point() else v for n, v in known.items()} | {x: value}
        args, kwargs = torch.fx.node.map_arg((node.args, dict(node.kwargs)), lambda n: known[n])  # noqa: B023
        value, x = node.target(*args, **kwargs), node  # type: ignore[operator]
    return value


def _keep_in_float(module: GraphModule, node: Node) -> None:
    """Mark an operator; write a batch norm as a product and a sum, which fold into no layer."""
    IN_FLOAT.say(node, True)
    if overload_name(node) not in BATCH_NORMS:
        return
    given = arguments(node)
    mean, variance, weight, bias = (
        None if (value := attribute(module, given[name])) is None else value.detach().double().numpy()
        for name in ("running_mean", "running_var", "weight", "bias")
    )
    scale = (1.0 if weight is None else weight) / np.sqrt(variance + given["eps"])
    shift = (0.0 if bias is None else bias) - mean * scale
    shape = [-1, *[1] * (node.meta["val"].dim() - 2)]
    write = GraphWriter(module, node, Capabilities(), {})
    product = write("mul.Tensor", given["input"], write.constant(scale.astype(np.float32).reshape(shape)))
    made = write("add.Tensor", product, write.constant(shift.astype(np.float32).reshape(shape)))
    node.replace_all_uses_with(made)
    module.graph.erase_node(node)
