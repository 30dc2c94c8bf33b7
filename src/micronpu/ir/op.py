"""Base class of the operators under `micronpu.ops`, and their annotation rules.

An operator defines its *meaning* on every target. The package of a target defines which operators it supports.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np

from micronpu.base.arrays import Array
from micronpu.ir.types import DType, QParams, TensorType

Permutation = tuple[int, ...]
Permuted: TypeAlias = "tuple[Op, Permutation] | None"


@dataclass(frozen=True)
class Value:
    """A concrete operand: integers and their type."""

    data: Array
    type: TensorType

    @property
    def scale(self) -> float:
        return self.type.scale

    @property
    def zero_point(self) -> int:
        return self.type.zero_point

    @property
    def centered(self) -> Array:
        """The integers without their zero point, as int64."""
        return self.data.astype(np.int64) - self.zero_point


@dataclass(frozen=True)
class Work:
    """Cost of executing an operator once, on any executor."""

    macs: int = 0  # multiply-accumulate operations
    bytes_read: int = 0  # activations read, in bytes
    bytes_written: int = 0  # results written, in bytes
    constant_bytes: int = 0  # weights and tables read, in bytes


class OutputQuantization(Enum):
    """Source of the quantization parameters of a result."""

    OWN = "own"
    SHARED = "shared"
    FIXED = "fixed"


class NewValues(Enum):
    """New values in the result of an operator that shares qparams with its operand.

    Attributes:
        NONE: the operator moves or selects.
        BETWEEN: values between those of the operand, such as a mean or an interpolation.
        ANY: values from the operator, such as a bound or a padding value.
    """

    NONE = "none"
    BETWEEN = "between"
    ANY = "any"


@dataclass(frozen=True)
class QuantizationRule:
    """PT2E annotation of an operator, in terms of its operand names."""

    # Operands that have an activation observer; a list operand means all of its elements.
    activations: tuple[str, ...] = ("x",)
    output: OutputQuantization = OutputQuantization.OWN  # own observer, shared with the first activation, or fixed
    fixed: QParams | None = None  # the fixed parameters of an int8 result
    fixed_int16: QParams | None = None  # those of an int16 result, if different
    weight: str = ""  # operand that holds the weights, or ""
    weight_axis: int = 0  # axis of the output channels in the weights
    bias: str = ""  # operand that holds the bias, or ""
    symmetric: bool = False  # the activations have zero point 0
    new_values: NewValues = NewValues.NONE  # of a result that shares qparams with its operand
    padding: float = 0.0  # number that a pad puts beside the elements; 0, which all qparams represent, for others
    # Lowest and highest value of a result with fixed qparams of scale 1 or more, if both are known.
    limits: tuple[float, float] | None = None
    # Minimum ratio of the operand's scale to the scale of the result's own range, for a result that shares qparams with
    # its operand, above which it gets its own qparams and the operator its other form, for small and for large
    # operands; None if it has no other form.
    finer: tuple[float, float] | None = None

    @property
    def selects(self) -> bool:
        """True if each element of the result is one of an operand, or the padding, in the operand's qparams."""
        return self.output is OutputQuantization.SHARED and self.new_values is NewValues.NONE

    @property
    def is_whole(self) -> bool:
        """True if the fixed qparams represent whole numbers only."""
        return self.fixed is not None and self.fixed.scale[0] >= 1.0

    def fixed_for(self, dtype: DType) -> QParams | None:
        """Fixed qparams of a result of element type ``dtype``."""
        return self.fixed_int16 or self.fixed if dtype is DType.INT16 else self.fixed


def own_qparams(*activations: str) -> QuantizationRule:
    """Return the rule for a result with its own observer."""
    return QuantizationRule(activations or ("x",))


def shares_qparams(
    of: str = "x", new_values: NewValues = NewValues.NONE, finer: tuple[float, float] | None = None
) -> QuantizationRule:
    """Return the rule for a result with the operand's qparams: the operator only moves or selects values.

    Args:
        new_values: values that it adds nevertheless; an operand of whole numbers gets a smaller scale for them.
        finer: see `QuantizationRule`.
    """
    return QuantizationRule((of,), OutputQuantization.SHARED, new_values=new_values, finer=finer)


def fixed_qparams(
    scale: float, zero_point: int, *, int16_scale: float | None = None, limits: tuple[float, float] | None = None
) -> QuantizationRule:
    """Return the rule for a result whose range is known in advance.

    Args:
        int16_scale: of an int16 result, whose zero point is 0; default ``scale``.
        limits: see `QuantizationRule`.
    """
    wide = None if int16_scale is None else QParams.per_tensor(int16_scale, 0)
    fixed = QParams.per_tensor(scale, zero_point)
    return QuantizationRule(output=OutputQuantization.FIXED, fixed=fixed, fixed_int16=wide, limits=limits)


def weighted(axis: int = 0) -> QuantizationRule:
    """Return the rule for symmetric int8 weights with an int32 bias, and a result with its own observer."""
    return QuantizationRule(weight="weight", weight_axis=axis, bias="bias")


class Steps(NamedTuple):
    """Largest difference in LSB of two results with equal qparams, for int8 and for int16 results."""

    int8: int = 0
    int16: int = 0


class Op(ABC):
    """An operator with its attributes; operands are passed to the methods.

    Subclasses are frozen dataclasses made by `operator`. Their docstring states the result and its shape, and their
    methods name the operands; type checkers accept any operands in place of ``*operands: Any, **named: Any``.
    """

    name: ClassVar[str]
    operand_names: ClassVar[tuple[str, ...]]
    """Names of the operands, in their order: the parameters of `infer`."""
    quantization: ClassVar[QuantizationRule]
    tosa_steps: ClassVar[Steps] = Steps()
    """Largest difference between the TOSA form and `reference`; 0 unless a subclass sets it."""
    imprecise: ClassVar[str] = ""
    """Reason why int8 results have a mean error of over 0.02 LSB, or over 2 % are not the nearest; "" if neither."""
    is_elementwise: ClassVar[bool] = False
    """True if each element of the result is a function of one element of the only operand."""

    @abstractmethod
    def infer(self, *operands: Any, **named: Any) -> TensorType:
        """Return the type of the result. ``qparams`` is set only if the operator dictates them.

        Raises:
            InternalError: the operands do not fit the attributes.
        """

    @abstractmethod
    def reference(self, y: TensorType, *operands: Any, **named: Any) -> Array:
        """Compute the result in a simple way; this defines the operator."""

    @abstractmethod
    def to_litert(self, emit: Any) -> None:
        """Write the operator into a LiteRT model, by a `micronpu.emit.litert.LiteRtEmitter` of a higher package."""

    @abstractmethod
    def to_tosa(self, emit: Any) -> Any:
        """Writes the operator into a TOSA model and returns the result, a `TosaTensor`.

        If TOSA's arithmetic differs from `reference`, the docstring describes how, and `tosa_steps` is the bound.

        Raises:
            UnsupportedError: there is no TOSA form; the message states the reason.
        """

    def macs(self, y: TensorType, *operands: Any, **named: Any) -> int:
        """Multiply-accumulate operations; 0 for operators that only move or compare."""
        return 0

    def work(self, y: TensorType, *operands: TensorType, constant: tuple[bool, ...] = ()) -> Work:
        """MACs and bytes moved. ``constant`` is True for constant operands; default: no operand is constant."""
        flags = constant or (False,) * len(operands)
        return Work(
            macs=self.macs(y, *operands),
            bytes_read=sum(t.bytes for t, c in zip(operands, flags, strict=True) if not c),
            bytes_written=y.bytes,
            constant_bytes=sum(t.bytes for t, c in zip(operands, flags, strict=True) if c),
        )

    def permuted(self, permutation: Permutation, y: TensorType, *operands: TensorType) -> Permuted:
        """Move a transpose of the operands behind the operator.

        Returns (op', p') such that ``op(transpose(x, permutation)) == transpose(op'(x), p')``, or None if there is
        none. ``y`` is the type of the result before the move.
        """
        return None

    def reordered(self, operand: Array, permutation: Permutation) -> Array:
        """Return a constant operand as ``op'`` of `permuted` takes it; missing leading axes count as 1."""
        return operand.reshape((1,) * (len(permutation) - operand.ndim) + operand.shape).transpose(permutation)

    def __str__(self) -> str:
        attributes = []
        for item in fields(self):  # type: ignore[arg-type]
            value = getattr(self, item.name)
            if value != item.default:
                text = value.name.lower() if isinstance(value, Enum) else str(value)
                attributes.append(f"{item.name}={text}")
        return f"{self.name}{{{', '.join(attributes)}}}" if attributes else self.name


@dataclass(frozen=True)
class Rescaling(Op):
    """Base of operators that scale wide sums or products to the result's qparams, of either element type."""

    # The result is int8 or int16; None for the type of the first operand.
    dtype: DType | None = field(default=None, kw_only=True)
