"""Arithmetic on two activations, with NumPy's broadcasting."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from micronpu.errors import InternalError, UnsupportedError
from micronpu.ir.types import QParams, TensorType
from micronpu.ops.arithmetic import (
    float32_quotient,
    multiply_by_quantized_multiplier,
    quantize_multiplier,
    requantize,
    saturate,
)
from micronpu.ops.base import Op, Permutation, Quantization, Value, from_aten, operator, own_qparams, shares_qparams
from micronpu.ops.constants import constant_int8, fused_activation
from micronpu.ops.fused import Activation
from micronpu.ops.movement import Reshape

if TYPE_CHECKING:
    from micronpu.emit.litert import LiteRtEmitter
    from micronpu.ir.graph import Tensor
    from micronpu.ops.aten import AtenNode

# Bits by which both addends are scaled up before their scales are made equal.
_ADD_SHIFT = 20

# Axes that all of LiteRT's kernels broadcast between (`sub.h`, kMaxBroadcastDim).
MAX_BROADCAST_RANK = 6


class Binary(Op):
    """Base of operators that pair the elements of two tensors; a transpose of both passes through unchanged."""

    operand_names = ("x", "z")
    verb: ClassVar[str] = "combined"

    def infer(self, *operands: TensorType) -> TensorType:
        x, z = operands
        try:
            shape = np.broadcast_shapes(x.shape, z.shape)
        except ValueError as error:
            raise InternalError(f"Shapes {list(x.shape)} and {list(z.shape)} cannot be {self.verb}.") from error
        return TensorType(tuple(shape), x.dtype)

    def permuted(self, permutation: Permutation, y: TensorType) -> tuple[Op, Permutation] | None:
        return self, permutation


def collapsed_shapes(x: tuple[int, ...], z: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Both shapes with as few axes as broadcasting between them allows: neighbours that repeat alike become one.

    [2,3,4,5] and [1,1,4,5] become [6,20] and [1,20].
    """
    rank = max(len(x), len(z))
    x, z = ((1,) * (rank - len(s)) + s for s in (x, z))
    left: list[int] = []
    right: list[int] = []
    before: tuple[bool, bool] | None = None
    for a, b in zip(x, z, strict=True):
        if a == b == 1:
            continue
        kind = (a == 1, b == 1)
        if kind == before:
            left[-1] *= a
            right[-1] *= b
        else:
            left.append(a)
            right.append(b)
        before = kind
    return tuple(left) or (1,), tuple(right) or (1,)


def emit_binary(node: AtenNode, op: Op, x: Tensor, z: Tensor, qparams: QParams | None) -> Tensor:
    """Appends a binary operator, behind reshapes where its operands have more axes than LiteRT broadcasts between."""
    if x.shape == z.shape or max(len(x.shape), len(z.shape)) <= MAX_BROADCAST_RANK:
        return node.emit(op, x, z, qparams=qparams)
    shape = tuple(np.broadcast_shapes(x.shape, z.shape))
    short = collapsed_shapes(x.shape, z.shape)
    if len(short[0]) > MAX_BROADCAST_RANK:
        raise UnsupportedError(
            f"`{node.overload}` broadcasts between {list(x.shape)} and {list(z.shape)}, which no reshape brings to "
            f"{MAX_BROADCAST_RANK} axes.",
            hint="expand one operand to the shape of the result first",
        )
    a, b = (t if t.shape == s else node.emit(Reshape(s), t) for t, s in zip((x, z), short, strict=True))
    return node.emit(Reshape(shape), node.emit(op, a, b, qparams=qparams))


def _check_addition(node: AtenNode, x: Tensor, z: Tensor) -> None:
    """LiteRT's addition cannot raise a sum by more than its own left shift."""
    if 2.0 * max(x.type.scale, z.type.scale) >= (1 << _ADD_SHIFT) * node.output.scale[0]:
        raise UnsupportedError(
            f"The result of `{node.overload}` has a scale of {node.output.scale[0]:g}, more than 2**{_ADD_SHIFT - 1} "
            f"times finer than its operands' {max(x.type.scale, z.type.scale):g}.",
            hint="calibrate with data for which the result is not close to zero everywhere",
        )


def _alpha_is_one(node: AtenNode) -> None:
    if node.value("alpha") != 1:
        raise UnsupportedError(
            f"`{node.overload}` scales its second operand by alpha = {node.value('alpha')}.",
            hint="quantize with `NeutronQuantizer`, which makes a multiplication of it",
        )


def scaled_sum(
    y: TensorType, operands: tuple[Value, ...], limits: tuple[int, int], combine: Callable[[Any, Any], Any]
) -> npt.NDArray[Any]:
    """Both operands brought to twice the larger scale with 20 extra bits, combined, and brought to the scale of y."""
    x, z = operands
    largest = 2.0 * max(x.scale, z.scale)
    left, right = (
        multiply_by_quantized_multiplier(v.centered << _ADD_SHIFT, *quantize_multiplier(v.scale / largest))
        for v in (x, z)
    )
    back = quantize_multiplier(largest / ((1 << _ADD_SHIFT) * y.scale))
    result = multiply_by_quantized_multiplier(combine(left, right), *back) + y.zero_point
    return saturate(result, *limits, y.dtype.value)


@operator("add")
class Add(Binary):
    """Sum of two tensors, with NumPy's broadcasting.

    x int8, z int8  ->  y int8 [broadcast shape], qparams of its own.
    """

    activation: Activation = Activation.NONE

    verb = "added"
    quantization = own_qparams("x", "z")

    def reference(self, y: TensorType, *operands: Value) -> npt.NDArray[Any]:
        return scaled_sum(y, operands, self.activation.limits(y), np.add)

    @from_aten("add.Tensor", "add_.Tensor", z="other", fuses=True)
    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        _alpha_is_one(node)
        x, z = node.tensor("x"), node.tensor("z")
        _check_addition(node, x, z)
        return emit_binary(node, cls(fused_activation(node)), x, z, node.output)

    def to_litert(self, emit: LiteRtEmitter) -> None:
        emit.add(
            "ADD", options="AddOptions", fields={"fusedActivationFunction": emit.activation(self.activation)}, version=2
        )


@operator("sub")
class Sub(Binary):
    """Difference x - z, with NumPy's broadcasting.

    x int8, z int8  ->  y int8 [broadcast shape], qparams of its own.
    """

    activation: Activation = Activation.NONE

    verb = "subtracted"
    quantization = own_qparams("x", "z")

    def reference(self, y: TensorType, *operands: Value) -> npt.NDArray[Any]:
        return scaled_sum(y, operands, self.activation.limits(y), np.subtract)

    @from_aten("sub.Tensor", "sub_.Tensor", "subtract.Tensor", z="other", fuses=True)
    @from_aten("rsub.Tensor", x="other", z="self", fuses=True)
    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        _alpha_is_one(node)
        x, z = node.tensor("x"), node.tensor("z")
        _check_addition(node, x, z)
        return emit_binary(node, cls(fused_activation(node)), x, z, node.output)

    def to_litert(self, emit: LiteRtEmitter) -> None:
        emit.add(
            "SUB", options="SubOptions", fields={"fusedActivationFunction": emit.activation(self.activation)}, version=2
        )


@operator("mul")
class Mul(Binary):
    """Product of two tensors, with NumPy's broadcasting.

    x int8, z int8  ->  y int8 [broadcast shape], qparams of its own.
    """

    activation: Activation = Activation.NONE

    verb = "multiplied"
    quantization = own_qparams("x", "z")

    def macs(self, y: TensorType, *operands: TensorType) -> int:
        return y.size

    def reference(self, y: TensorType, *operands: Value) -> npt.NDArray[Any]:
        x, z = operands
        scaled = requantize(x.centered * z.centered, float32_quotient(y.scale, x.scale, z.scale)) + y.zero_point
        return saturate(scaled, *self.activation.limits(y), y.dtype.value)

    @from_aten("mul.Tensor", "mul_.Tensor", "multiply.Tensor", z="other", fuses=True)
    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        return emit_binary(node, cls(fused_activation(node)), node.tensor("x"), node.tensor("z"), node.output)

    # Only what divides by a constant can be expressed; the quantizer makes a `mul` of it, so that nothing is annotated
    # here, and programs that come quantized are imported.
    @from_aten("div.Tensor", "div_.Tensor", z="other", fuses=True, quantization=Quantization(activations=()))
    @classmethod
    def build_division(cls, node: AtenNode) -> Tensor:
        if not node.is_constant("z"):
            raise UnsupportedError(
                "`div` divides by a tensor that is computed at run time.",
                hint="multiply with the reciprocal, or divide on the host",
            )
        divisor = node.float_constant("z").astype(np.float64)
        if not divisor.all():
            raise UnsupportedError("`div` divides by a constant that holds zeros.")
        return emit_binary(
            node, cls(fused_activation(node)), node.tensor("x"), constant_int8(node, 1.0 / divisor), node.output
        )

    def to_litert(self, emit: LiteRtEmitter) -> None:
        emit.add(
            "MUL", options="MulOptions", fields={"fusedActivationFunction": emit.activation(self.activation)}, version=2
        )


class Selection(Binary):
    """Base of minimum and maximum, which compare integers: all operands and the result share scale and zero point."""

    verb = "compared"
    quantization = shares_qparams("x")
    litert: ClassVar[str]

    def infer(self, *operands: TensorType) -> TensorType:
        if operands[0].qparams != operands[1].qparams:
            raise InternalError(
                f"{self.name} compares {operands[0]} with {operands[1]}, whose integers differ in meaning."
            )
        return super().infer(*operands).with_qparams(operands[0].qparams)

    def to_litert(self, emit: LiteRtEmitter) -> None:
        emit.add(self.litert, options="MaximumMinimumOptions", version=2)


_BOTH_SHARED = Quantization(("x", "z"), shares_qparams().output)


def _emit_selection(node: AtenNode, op: Op) -> Tensor:
    x, z = node.tensor("x"), node.tensor("z")
    if x.type.qparams != z.type.qparams:
        raise UnsupportedError(
            f"The operands of `{node.overload}` are on different grids, {x.type.qparams} and {z.type.qparams}.",
            hint="quantize with `NeutronQuantizer`, which lets them share one",
        )
    return emit_binary(node, op, x, z, None)


@operator("minimum")
class Minimum(Selection):
    """The smaller of two elements, with NumPy's broadcasting.

    x int8, z int8 with the same qparams  ->  y int8 [broadcast shape], qparams of x.
    """

    quantization = _BOTH_SHARED
    litert = "MINIMUM"

    def reference(self, y: TensorType, *operands: Value) -> npt.NDArray[Any]:
        return np.minimum(operands[0].data, operands[1].data)

    @from_aten("minimum.default", "min.other", z="other")
    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        return _emit_selection(node, cls())


@operator("maximum")
class Maximum(Selection):
    """The larger of two elements, with NumPy's broadcasting.

    x int8, z int8 with the same qparams  ->  y int8 [broadcast shape], qparams of x.
    """

    quantization = _BOTH_SHARED
    litert = "MAXIMUM"

    def reference(self, y: TensorType, *operands: Value) -> npt.NDArray[Any]:
        return np.maximum(operands[0].data, operands[1].data)

    @from_aten("maximum.default", "max.other", z="other")
    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        return _emit_selection(node, cls())
