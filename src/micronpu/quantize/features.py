"""Standardisation of inputs, (x - mean) / deviation, in float where quantizing the raw input would cost too much.

A pressure of 1013 +- 2 hPa on an int8 scale for 0 to 1020 has an LSB of 4 hPa: nothing is left of it.  The same holds
for the constants: of factors of 0.14 and 530 on one scale the small ones are 0 in int8, and 6 % wrong in int16.  The
input is float anyway, so that the program standardises first and quantizes the result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.fx import GraphModule, Node

from micronpu.frontend.constants import attribute
from micronpu.frontend.facts import IN_FLOAT, SETTING
from micronpu.frontend.importer import known_import
from micronpu.frontend.program import arguments, overload_name
from micronpu.ir.lowering import Capabilities
from micronpu.ops.facts import Form, affine_in
from micronpu.ops.normalization import BATCH_NORMS
from micronpu.quantize.config import QuantizationConfig
from micronpu.quantize.nodes import form_of
from micronpu.quantize.running import Row
from micronpu.quantize.thresholds import FEATURE_ENOUGH, FEATURE_NOISE, FEATURE_ROWS
from micronpu.quantize.writer import GraphWriter


def mark_standardisation(
    module: GraphModule, sequences: Sequence[Sequence[Row]], default: QuantizationConfig | None
) -> None:
    """Mark the operators that standardise an input and stay in float, in place; batch norms become two of them.

    Args:
        sequences: calibration data, of which the first sample of some sequences is measured.
        default: configuration of what no setting is for.
    """
    rows = [sequence[0] for sequence in sequences[:: max(1, len(sequences) // FEATURE_ROWS)][:FEATURE_ROWS] if sequence]
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
        read_as = affine_in(overload_name(node))
        is_affine = any(arguments(node)[name] is value for name in read_as)
        is_affine = is_affine and all(attribute(module, n) is not None for n in others)
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
    """Return True if rounding the raw input and the constants costs far more than rounding the result."""
    steps = 255 if default.activations == "int8" else 65535
    with torch.no_grad():
        raw = [row.detach().double() for row in rows]
        results = [_computed(module, x, chain, row) for row in raw]
        before, after = _range(raw), _range(results)
        if not 0.0 < after < math.inf or not 0.0 < before < math.inf:
            return False
        signal, noise = (torch.zeros_like(results[0]) for _ in range(2))
        for row, result in zip(raw, results, strict=True):
            signal += result.square()
            noise += (_computed(module, x, chain, _rounded(row, before / steps), steps) - result).square()
    own = (after / steps) ** 2 / 12
    shares = (noise / signal)[signal > 0].clamp(max=1.0)
    costs = float(noise.mean()) / len(raw) > FEATURE_NOISE**2 * own
    return costs and float(shares.mean()) > 10 ** (-FEATURE_ENOUGH / 10)


def _range(values: Sequence[torch.Tensor]) -> float:
    """Width of the range of some values and zero."""
    every = torch.cat([value.flatten() for value in values])
    return float(every.max().clamp(min=0) - every.min().clamp(max=0))


def _rounded(value: torch.Tensor, step: float) -> torch.Tensor:
    return (value / step).round() * step if step else value


def _computed(module: GraphModule, x: Node, chain: Sequence[Node], value: torch.Tensor, steps: int = 0) -> torch.Tensor:
    """Return the result of the operators for an input, in float64.

    Args:
        steps: number of LSBs in the symmetric range of each constant; 0 for exact constants.
    """
    for node in chain:
        known: dict[Node, Any] = {n: attribute(module, n) for n in node.all_input_nodes}
        known = {n: v.double() if v is not None and v.is_floating_point() else v for n, v in known.items()}
        if steps and overload_name(node) not in BATCH_NORMS:
            is_divisor = form_of(node) is Form.QUOTIENT
            known = {n: v if v is None else _on_scale(v, steps, is_divisor) for n, v in known.items()}
        known[x] = value
        args, kwargs = torch.fx.node.map_arg((node.args, dict(node.kwargs)), lambda n: known[n])  # noqa: B023
        value, x = node.target(*args, **kwargs), node  # type: ignore[operator]
    return value


def _on_scale(constant: torch.Tensor, steps: int, is_divisor: bool) -> torch.Tensor:
    """A constant on its symmetric scale; of a divisor its reciprocal is, by which the program multiplies."""
    factor = 1 / constant if is_divisor else constant
    factor = _rounded(factor, float(factor.abs().max()) / (steps // 2))
    return 1 / factor if is_divisor else factor


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
