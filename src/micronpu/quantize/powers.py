"""Logarithms of powers, such as those of a spectrum, from the logarithms of its real and imaginary parts."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from micronpu.base.order import reachable
from micronpu.frontend.facts import IN_FLOAT, SETTING
from micronpu.frontend.graphs import GraphModule, Node, operand
from micronpu.frontend.program import arguments, is_float32, overload_name, value_of
from micronpu.frontend.run import called, elementwise, steps_of
from micronpu.frontend.tensors import attribute, is_trained, number, replace_each
from micronpu.ir.facts import Form
from micronpu.ir.lowering import Capabilities
from micronpu.ops.convolution import CONVOLUTIONS
from micronpu.ops.slicing import CONCATENATIONS, SLICES, STACKS
from micronpu.quantize import thresholds as at
from micronpu.quantize.nodes import form_of, line_of, moves, power_of
from micronpu.quantize.writer import GraphWriter, switchable


@switchable
def logarithms_of_powers(model: GraphModule, able: Capabilities) -> bool:
    """log(a * a + b * b + c) -> x + softplus(y - x) of x = log(a * a + c / 2) and y = log(b * b + c / 2)

    Exact up to float rounding.  Powers span twice as many decibels as the amplitudes that they are squares of: in int16
    a table of amplitudes computes 90 dB, and one of powers 45.  Factors of the amplitudes are merged into the
    convolutions that compute them, and logarithms of concatenated amplitudes are concatenated, so that amplitudes of
    unequal size have their own qparams.  In int16 the weights of convolutions before them are added in two parts, since
    int8 weights leak -50 dB of other frequencies.
    """
    found = list[Node]()
    if not able.tables or not replace_each(model, partial(_logarithm, model, able, found)):
        return False
    for before in reachable(found, lambda n: n.all_input_nodes):
        if overload_name(before) in CONVOLUTIONS and any(c and c.activations == "int16" for c in SETTING.of(before)):
            _in_two_parts(GraphWriter(model, before, able, {}))
    return True


def _logarithm(model: GraphModule, able: Capabilities, found: list[Node], node: Node) -> Node | None:
    if form_of(node) is not Form.LOGARITHM or not is_float32(node) or IN_FLOAT.of(node):
        return None
    x, floor, exponent, moved = operand(node), 0.0, 1.0, list[Node]()
    if (line := line_of(model, x)) is not None and line[1] == 1:
        x, _, floor = line
    while (power := 1.0 if moves(x) else power_of(x)) and len(x.all_input_nodes) == 1:
        exponent *= power
        moved += [x] if moves(x) else []
        (x,) = x.all_input_nodes
    pair = _pair(x) if exponent == 1 and floor > 0 else None
    if pair is None:
        return None
    write = GraphWriter(model, node, able, {})
    made = write("reshape.default", _Parts(model, write, floor / 2).logarithm(*pair), list(value_of(x).shape))
    for move in reversed(moved):
        made = write.copy(move, {move.all_input_nodes[0]: made})
    found.append(made)
    return made


def _in_two_parts(write: GraphWriter) -> None:
    """conv(x, w) -> conv(x, v) + conv(x, w - v), where v is w rounded to 255 numbers of each channel"""
    given = write.arguments
    weight = None if write.is_trained(given["weight"]) else write.stored(given["weight"])
    if weight is None:
        return
    scale = np.abs(weight).max(axis=tuple(range(1, weight.ndim)), keepdims=True) / 127
    coarse = np.rint(weight / np.maximum(scale, np.finfo(np.float32).tiny)) * scale
    if np.array_equal(coarse, weight):
        return
    first = write.copy(write.node, {given["weight"]: write.constant(coarse)})
    second = write.copy(write.node, {given["weight"]: write.constant(weight - coarse), given["bias"]: None})
    write.node.replace_all_uses_with(write("add.Tensor", first, second))


def _pair(x: Node) -> tuple[Node, int] | None:
    """Return (a, axis) of the sum of a * a along an axis of two elements; None for anything else."""
    if form_of(x) is not Form.ROW_SUM or power_of(square := operand(x)) != 2:
        return None
    axes, (a,) = arguments(x)["dim"], square.all_input_nodes
    shape = value_of(a).shape
    is_pair = shape == value_of(square).shape and len(axes or ()) == 1 and shape[axes[0]] == 2
    return (a, axes[0] % len(shape)) if is_pair else None


class _Parts:
    """Writer of the logarithms of the powers of pairs, for each part of a concatenation.

    Args:
        floor: the number that is added to each square.
    """

    def __init__(self, model: GraphModule, write: GraphWriter, floor: float) -> None:
        self._model, self._write, self._floor = model, write, floor

    def logarithm(self, x: Node, axis: int, depth: int = 0) -> Node:
        """Return the logarithm of the power of pairs along an axis, which stays with a size of 1."""
        x, write = self._without_factor(x), self._write
        name, given = overload_name(x), arguments(x)
        is_part, is_stack = name in (*CONCATENATIONS, *SLICES), name in STACKS
        own = given["dim"] % value_of(x).dim() if is_part or is_stack else axis
        if is_part and own != axis and depth < at.DEEPEST:
            return write.copy(x, {part: self.logarithm(part, axis, depth + 1) for part in x.all_input_nodes})
        a, b = given["tensors"] if is_stack and own == axis else (write("select.int", x, axis, i) for i in range(2))
        a, b = (self._of_square(v) for v in (a, b))
        sum = write("add.Tensor", a, write("softplus.default", write("sub.Tensor", b, a)))
        return write("unsqueeze.default", sum, axis)

    def _of_square(self, a: Node) -> Node:
        """Return log(a * a + floor) as one table, since in int16 the square spans 45 dB."""
        square = self._write("mul.Tensor", a, a)
        total = self._write("add.Tensor", square, self._floor)
        made = self._write("log.default", total)
        steps = steps_of([a], [square, total, made], partial(number, self._model))
        made.target, made.args = elementwise, (a, steps)
        return made

    def _without_factor(self, x: Node) -> Node:
        """Return a product with a constant as convolutions with other weights, if possible, else the product."""
        for a, b in (x.args[:2], x.args[1::-1]) if form_of(x) is Form.PRODUCT else ():
            factor = None if is_trained(self._model, b) else attribute(self._model, b)
            if factor is not None and isinstance(a, Node) and value_of(a).shape == value_of(x).shape:
                return self._scaled(a, factor.expand(value_of(a).shape)) or x
        return x

    def _scaled(self, x: Node, factor: torch.Tensor, depth: int = 0) -> Node | None:
        """Return x with factors of its elements merged into the convolutions before it; None if that is impossible."""
        if len(x.users) > 1 or depth == at.DEEPEST:
            return None
        name, operands = overload_name(x), x.all_input_nodes
        if name in CONVOLUTIONS:
            return self._convolved(x, factor)
        if form_of(x) is not Form.NEGATIVE and name not in STACKS and not moves(x):
            return None
        places, first = dict[Node, torch.Tensor](), 0
        for n in operands:
            shape = value_of(n).shape
            places[n] = torch.arange(first, first + shape.numel()).reshape(shape)
            first += shape.numel()
        spread = torch.ones(first)
        spread[called(x, places).abs().flatten()] = factor.flatten()
        made = {n: self._scaled(n, spread[places[n]], depth + 1) for n in operands}
        return None if None in made.values() else self._write.copy(x, made)

    def _convolved(self, x: Node, factor: torch.Tensor) -> Node | None:
        """Return a convolution of a batch with a factor of each channel; None if factors of a channel differ."""
        given, channels = arguments(x), factor.movedim(1, 0).flatten(1) if factor.dim() > 2 else factor
        weight, bias = (attribute(self._model, given[name]) for name in ("weight", "bias"))
        is_fixed = not any(is_trained(self._model, given[name]) for name in ("weight", "bias"))
        if weight is None or not is_fixed or factor.dim() != weight.dim() or (channels != channels[:, :1]).any():
            return None
        made = {given["weight"]: weight * channels[:, 0].reshape([-1] + [1] * (weight.dim() - 1))}
        made |= {} if bias is None else {given["bias"]: bias * channels[:, 0]}
        return self._write.copy(x, {n: self._write.constant(v.detach().cpu().numpy()) for n, v in made.items()})
