"""What an operator is: the facets that every class under `micronpu.ops` has.

An operator knows what it *means* on every target.  What a chip can do with it stands in that chip's folder.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from micronpu.ir.types import DType, QParams, TensorType

Permutation = tuple[int, ...]


@dataclass(frozen=True)
class Value:
    """A concrete operand: integers and the type that says what they mean."""

    data: npt.NDArray[Any]
    type: TensorType

    @property
    def scale(self) -> float:
        return self.type.scale

    @property
    def zero_point(self) -> int:
        return self.type.zero_point

    @property
    def centered(self) -> npt.NDArray[Any]:
        """The integers without their zero point, as int64."""
        return self.data.astype(np.int64) - self.zero_point


@dataclass(frozen=True)
class Work:
    """What executing an operator once costs, whatever executes it.

    Attributes:
        macs: multiply-accumulate operations.
        bytes_read: activations read, in bytes.
        bytes_written: results written, in bytes.
        constant_bytes: weights and tables read, in bytes.
    """

    macs: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    constant_bytes: int = 0


class OutputQuantization(Enum):
    """Where the quantization parameters of a result come from."""

    OWN = "own"
    SHARED = "shared"
    FIXED = "fixed"


class NewValues(Enum):
    """Which values the result of an operator has that its operand has not, where the two share a grid.

    Attributes:
        NONE: it moves or selects.
        BETWEEN: values between those of the operand, as a mean or an interpolation.
        ANY: values that the operator brings along, such as a bound or what it pads with.
    """

    NONE = "none"
    BETWEEN = "between"
    ANY = "any"


@dataclass(frozen=True)
class Quantization:
    """How PT2E annotates an operator, in terms of its operand names.

    Attributes:
        activations: operands that carry an activation's observer; a list operand counts as all of its elements.
        output: own observer, shared with the first activation, or fixed.
        fixed: the fixed parameters of an int8 result.
        fixed_int16: those of an int16 result, where they differ.
        weight: operand that holds the weights, or "".
        weight_axis: axis of the output channels in the weights.
        bias: operand that holds the bias, or "".
        symmetric: the activations have zero point 0.
        new_values: of a result that shares its operand's grid.
        limits: lowest and highest value of a result on a fixed grid of whole numbers, where both are known.
        finer: of a result that shares its operand's grid: how many times finer the steps of its own range have to be
            for it to have a grid of its own, for which the operator has another form, where the operand is small and
            where it is large; None where it has none.
    """

    activations: tuple[str, ...] = ("x",)
    output: OutputQuantization = OutputQuantization.OWN
    fixed: QParams | None = None
    fixed_int16: QParams | None = None
    weight: str = ""
    weight_axis: int = 0
    bias: str = ""
    symmetric: bool = False
    new_values: NewValues = NewValues.NONE
    limits: tuple[float, float] | None = None
    finer: tuple[float, float] | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the fixed grid has whole numbers only, and nothing between them."""
        return self.fixed is not None and self.fixed.scale[0] >= 1.0

    def fixed_for(self, dtype: DType) -> QParams | None:
        """The fixed parameters of a result of an element type."""
        return self.fixed_int16 or self.fixed if dtype is DType.INT16 else self.fixed


def own_qparams(*activations: str) -> Quantization:
    """The result has an observer of its own."""
    return Quantization(activations or ("x",))


def symmetric_operands(*activations: str) -> Quantization:
    """The operands have zero point 0, the result has an observer of its own."""
    return Quantization(activations, symmetric=True)


def shares_qparams(
    of: str = "x", new_values: NewValues = NewValues.NONE, finer: tuple[float, float] | None = None
) -> Quantization:
    """The result has the scale and zero point of the operand: the operator only moves or selects values.

    Args:
        new_values: those that it has nevertheless; an operand on a grid of whole numbers gets a finer one for them.
        finer: see `Quantization`.
    """
    return Quantization((of,), OutputQuantization.SHARED, new_values=new_values, finer=finer)


def fixed_qparams(
    scale: float,
    zero_point: int,
    *,
    int16_scale: float | None = None,
    limits: tuple[float, float] | None = None,
) -> Quantization:
    """The range of the result is known beforehand.

    Args:
        int16_scale: of an int16 result, whose zero point is 0; ``scale`` unless given.
        limits: see `Quantization`.
    """
    wide = None if int16_scale is None else QParams.per_tensor(int16_scale, 0)
    fixed = QParams.per_tensor(scale, zero_point)
    return Quantization(output=OutputQuantization.FIXED, fixed=fixed, fixed_int16=wide, limits=limits)


def weighted(axis: int = 0) -> Quantization:
    """Symmetric int8 weights with an int32 bias; the result has an observer of its own."""
    return Quantization(weight="weight", weight_axis=axis, bias="bias")


class Steps(NamedTuple):
    """Largest difference of two results on the same grid, for int8 and for int16 results."""

    int8: int = 0
    int16: int = 0


class Op(ABC):
    """An operator with its attributes; operands are passed to the methods.

    Subclasses are frozen dataclasses made by `operator`.  Their doc-string says what the result is, with shapes.
    """

    name: ClassVar[str]
    operand_names: ClassVar[tuple[str, ...]] = ("x",)
    quantization: ClassVar[Quantization]
    tosa_steps: ClassVar[Steps] = Steps()
    """By how much the TOSA form differs from `reference`; not at all unless a class says so."""

    @abstractmethod
    def infer(self, *operands: TensorType) -> TensorType:
        """Type of the result.  ``qparams`` is set where the operator dictates them and None elsewhere.

        Raises:
            InternalError: the operands do not fit the attributes.
        """

    @abstractmethod
    def reference(self, y: TensorType, *operands: Value) -> npt.NDArray[Any]:
        """The result, computed in the slow and obvious way: the definition of the operator."""

    @abstractmethod
    def to_litert(self, emit: Any) -> None:
        """Writes the operator into a LiteRT model.

        Args:
            emit: a `micronpu.emit.litert.LiteRtEmitter`; the formats stand above the operators and name them.
        """

    @abstractmethod
    def to_tosa(self, emit: Any) -> Any:
        """Writes the operator into a TOSA model and returns the result, a `TosaTensor`.

        Where TOSA's arithmetic differs from `reference`, the doc-string says how, and `tosa_steps` by how much.

        Raises:
            UnsupportedError: there is no TOSA form; the message says why.
        """

    def macs(self, y: TensorType, *operands: TensorType) -> int:
        """Multiply-accumulate operations; 0 for operators that only move or compare."""
        return 0

    def work(self, y: TensorType, *operands: TensorType, constant: tuple[bool, ...] = ()) -> Work:
        """MACs and bytes moved.  ``constant`` tells which operands are constants; none unless told."""
        flags = constant or (False,) * len(operands)
        return Work(
            macs=self.macs(y, *operands),
            bytes_read=sum(t.bytes for t, c in zip(operands, flags, strict=True) if not c),
            bytes_written=y.bytes,
            constant_bytes=sum(t.bytes for t, c in zip(operands, flags, strict=True) if c),
        )

    def permuted(self, permutation: Permutation, y: TensorType) -> tuple[Op, Permutation] | None:
        """How a transpose of the operands moves behind the operator.

        Returns (op', p') such that ``op(transpose(x, permutation)) == transpose(op'(x), p')``, or None where that
        cannot be.  ``y`` is the type of the result before the move.
        """
        return None

    def __str__(self) -> str:
        attributes = []
        for item in fields(self):  # type: ignore[arg-type]
            value = getattr(self, item.name)
            if value != item.default:
                text = value.name.lower() if isinstance(value, Enum) else str(value)
                attributes.append(f"{item.name}={text}")
        return f"{self.name}{{{', '.join(attributes)}}}" if attributes else self.name
