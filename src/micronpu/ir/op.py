"""What an operator is: the facets that every class under `micronpu.ops` has, and the registry of all of them.

An operator knows what it *means* on every target.  What a chip can do with it stands in that chip's folder.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from typing_extensions import dataclass_transform

from micronpu.base.errors import InternalError
from micronpu.ir.types import DType, QParams, TensorType
from micronpu.ir.way import WAYS, Kind, Way, add_way

if TYPE_CHECKING:
    from micronpu.ir.aten import AtenArguments, AtenNode
    from micronpu.ir.graph import Tensor

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
    """

    activations: tuple[str, ...] = ("x",)
    output: OutputQuantization = OutputQuantization.OWN
    fixed: QParams | None = None
    fixed_int16: QParams | None = None
    weight: str = ""
    weight_axis: int = 0
    bias: str = ""
    symmetric: bool = False

    def fixed_for(self, dtype: DType) -> QParams | None:
        """The fixed parameters of a result of an element type."""
        return self.fixed_int16 or self.fixed if dtype is DType.INT16 else self.fixed


def own_qparams(*activations: str) -> Quantization:
    """The result has an observer of its own."""
    return Quantization(activations or ("x",))


def symmetric_operands(*activations: str) -> Quantization:
    """The operands have zero point 0, the result has an observer of its own."""
    return Quantization(activations, symmetric=True)


def shares_qparams(of: str = "x") -> Quantization:
    """The result has the scale and zero point of the operand: the operator only moves or selects values."""
    return Quantization((of,), OutputQuantization.SHARED)


def fixed_qparams(scale: float, zero_point: int, *, int16_scale: float | None = None) -> Quantization:
    """The range of the result is known beforehand.

    Args:
        int16_scale: of an int16 result, whose zero point is 0; ``scale`` unless given.
    """
    wide = None if int16_scale is None else QParams.per_tensor(int16_scale, 0)
    fixed = QParams.per_tensor(scale, zero_point)
    return Quantization(output=OutputQuantization.FIXED, fixed=fixed, fixed_int16=wide)


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


# ---------------------------------------------------------------- registry

OpClass = TypeVar("OpClass", bound=type[Op])
BuildFunction = Callable[["AtenNode"], "Tensor"]


@dataclass(frozen=True)
class AtenImport(Way):
    """How one ATen overload becomes operators, or a table.

    Attributes:
        build: makes the nodes and returns the result; raises `UnsupportedError` for a form that cannot be imported.
        quantization: annotation rule, or a function of the node where it depends on the arguments.
        arguments: operand name to schema argument name where the two differ.
        fuses: the operator can take a following clamp into itself.
        is_activation: this overload is such a clamp.
        moves_only: the operator computes nothing, so that it is no reason to start a partition.
        is_table: the operator is a table, which is only wanted for chips that look results up.
    """

    build: BuildFunction
    quantization: Quantization | Callable[[AtenArguments], Quantization]
    arguments: tuple[tuple[str, str], ...] = ()
    fuses: bool = False
    is_activation: bool = False
    moves_only: bool = False
    is_table: bool = False

    @property
    def kind(self) -> Kind:
        return Kind.TABLE if self.is_table else Kind.OPERATOR


class _Imports(Mapping[str, AtenImport]):
    """Those of the ways that importers take, by overload."""

    def __getitem__(self, overload: str) -> AtenImport:
        for way in WAYS.get(overload, ()):
            if isinstance(way, AtenImport):
                return way
        raise KeyError(overload)

    def __iter__(self) -> Iterator[str]:
        return (name for name, ways in WAYS.items() if any(isinstance(w, AtenImport) for w in ways))

    def __len__(self) -> int:
        return sum(1 for _ in self)


OPERATORS: dict[str, type[Op]] = {}
ATEN_IMPORTS: Mapping[str, AtenImport] = _Imports()
"""A view of the registry of ways: the operators and tables in it."""


@dataclass_transform(frozen_default=True)
def operator(name: str) -> Callable[[OpClass], OpClass]:
    """Makes a class a frozen dataclass and registers it under ``name``."""

    def register(cls: OpClass) -> OpClass:
        if name in OPERATORS:
            raise InternalError(f"Two operators are called {name}.")
        made: Any = dataclass(frozen=True)(cls)
        made.__str__ = Op.__str__
        made.name = name
        OPERATORS[name] = made
        for member in vars(cls).values():
            function = getattr(member, "__func__", member)
            for pending in getattr(function, "_aten_imports", ()):
                _register_import(pending, made, member)
        for pending in vars(cls).get("_aten_imports", ()):
            _register_import(pending, made, inspect.getattr_static(made, "build"))
        return made  # type: ignore[no-any-return]

    return register


def _register_import(pending: dict[str, Any], cls: type[Op], member: Any) -> None:
    options = dict(pending)
    overloads = options.pop("overloads")
    options["quantization"] = options["quantization"] or cls.quantization
    build = member.__get__(None, cls)
    for overload in overloads:
        add_way(AtenImport(overload, build, **options))


def from_aten(
    *overloads: str,
    quantization: Quantization | Callable[[AtenArguments], Quantization] | None = None,
    fuses: bool = False,
    is_activation: bool = False,
    moves_only: bool = False,
    **arguments: str,
) -> Callable[[Any], Any]:
    """Marks a class method ``build(cls, node)``, or a class with one of its base, as the importer of ATen overloads.

    Args:
        arguments: operand name = schema argument name, where the two differ (``x="self"`` is the default).
    """

    def mark(method: Any) -> Any:
        function = getattr(method, "__func__", method)
        pending = vars(function).get("_aten_imports", [])
        pending.append(
            {
                "overloads": overloads,
                "quantization": quantization,
                "arguments": tuple(({"x": "self"} | arguments).items()),
                "fuses": fuses,
                "is_activation": is_activation,
                "moves_only": moves_only,
            }
        )
        function._aten_imports = pending
        return method

    return mark


def imports(
    *overloads: str, quantization: Quantization, moves_only: bool = True, **arguments: str
) -> Callable[[BuildFunction], BuildFunction]:
    """Marks a function as the importer of ATen overloads that become several operators of micronpu.

    Args:
        arguments: as for `from_aten`.
    """

    def mark(build: BuildFunction) -> BuildFunction:
        for overload in overloads:
            names = tuple(({"x": "self"} | arguments).items())
            add_way(AtenImport(overload, build, quantization, names, moves_only=moves_only))
        return build

    return mark


def all_operators() -> Iterator[type[Op]]:
    """Every operator class, sorted by name."""
    return (OPERATORS[name] for name in sorted(OPERATORS))
