"""The registry of lowerings of ATen overloads, and the device capabilities that select among them.

An overload is lowered to an operator, to a table of a function of one element, or to a decomposition into other
overloads. Decompositions are applied before quantization, so that every intermediate value gets its own qparams. All
lowerings are defined in the modules of `micronpu.ops`. Importers, annotation, support tables, hints and `micronpu
passes` read them here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, TypeAlias, TypeVar

from micronpu.base.arrays import Array
from micronpu.base.docstrings import docstring
from micronpu.base.errors import InternalError
from micronpu.ir.aten import AtenArguments
from micronpu.ir.facts import Facts, Given
from micronpu.ir.types import DType


class Kind(Enum):
    """Kinds of lowerings."""

    OPERATOR = "operator"
    TABLE = "table"
    DECOMPOSITION = "decomposition"


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """Features of a device that select lowerings."""

    tables: bool = False  # any function of one element, as a lookup table; includes comparisons and selections
    activations: tuple[DType, ...] = (DType.INT8,)  # element types of activations, the default first
    index_types: tuple[DType, ...] = ()  # integer types of indices, such as embedding rows, that the device reads
    lookups: bool = False  # gather and scatter of matrix rows at indices known at run time
    positions: bool = False  # argmax over at most 256 elements, as int8 numbers
    resizes: bool = False  # image resize to any size, not only by certain factors
    # Image resize by 1, 2, 4 or 8 along each axis, with or without aligned corners, and by different factors along the
    # two axes.
    resizes_by_axis: bool = False
    zero_points: bool = False  # products of two computed matrices with any zero points

    @property
    def has_int16(self) -> bool:
        """True if activations may be int16."""
        return DType.INT16 in self.activations

    def computes(self, overload: str) -> bool:
        """True if an overload has a lowering to an operator, or to a table if the device has tables."""
        return any(
            lowering.kind is Kind.OPERATOR or (lowering.kind is Kind.TABLE and self.tables)
            for lowering in LOWERINGS.get(overload, ())
        )

    def decompositions(self, overload: str) -> tuple[Decomposition, ...]:
        """Return the decompositions to try for an overload, in order; none if the device has a table for it.

        Decompositions of decisions are always returned: their result has to become a number even after a table lookup.
        """
        lowerings = LOWERINGS.get(overload, ())
        in_table = self.tables and any(lowering.kind is Kind.TABLE for lowering in lowerings)
        return tuple(
            lowering
            for lowering in lowerings
            if isinstance(lowering, Decomposition) and (lowering.decides or not in_table)
        )


@dataclass(frozen=True)
class Lowering:
    """One lowering of an ATen overload, such as ``conv2d.default``."""

    overload: str

    @property
    def kind(self) -> Kind:
        raise NotImplementedError


Float: TypeAlias = Any
"""A value of the float program: a number, or a node that operators pass on without reading it."""


@dataclass(frozen=True)
class FloatCall:
    """The call that computes a value of the float program."""

    overload: str  # of the called operator
    given: Given  # its arguments by the names of the schema, defaults filled in
    readers: int  # number of operators that read the value


@dataclass(frozen=True)
class Results:
    """Replacements for some results of an operator with several; the other results are unused."""

    values: Mapping[int, Float]


Step = Callable[["Writer", Float, list[Float]], list[Float]]
"""Writes a step of a loop with a writer for the step's graph: maps a row and the states to the new states."""


class Writer(AtenArguments, Protocol):
    """Writes the operators of a decomposition in place of the operator that they replace.

    Operators are named by their overloads, so that decompositions need no torch.
    """

    @property
    def given(self) -> Given:
        """Arguments of the operator by schema name, with defaults."""

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities of the target device."""

    @property
    def unevenness(self) -> float:
        """Ratio of large to small rows of a norm during calibration; 1 for other operators."""

    @property
    def row_size(self) -> float:
        """Size of the largest row of a norm during calibration."""

    def __call__(self, overload: str, *arguments: object) -> Float:
        """Append an operator and return its result."""

    def constant(self, value: float | Array, before: Float = None) -> Float:
        """Return a constant operand; a number becomes a tensor of one element.

        Args:
            before: computed value to insert it before; default: the operator to be replaced.
        """

    def shape(self, x: Float = None) -> tuple[int, ...]:
        """Shape of a value; default: of the (first) result."""

    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of all results."""

    def dtype(self, x: Float = None) -> DType | None:
        """Element type of a value, as for `shape`; None if micronpu has no such type."""

    def kept(self) -> Float:
        """Keep the operator and return its result; operators written later follow it."""

    def beside(self, x: Float, overload: str, *arguments: object) -> Float:
        """Append an operator next to the one that computes x and return its result; equal requests share one operator.

        It is inserted after x if it reads x, otherwise before x.
        """

    def once(self, x: Float, make: Callable[[], Float | None]) -> Float | None:
        """Return the cached result of ``make`` for x; ``make`` is called at most once for each x."""

    def change(self, x: Float, **arguments: object) -> Float:
        """Return x after changing arguments, given by schema name, of the operator that computes it.

        Only the operator to be replaced may read x.  Arrays become constants.
        """

    def decided(self, number: Float) -> Float:
        """Convert a number to the decision that it represents, in the type of the operator's result; see `number`."""

    def only_sign(self, x: Float) -> Float:
        """Mark x as read for its sign only: its scale may be small, and values outside its range may saturate."""

    def kept_or_zero(self, number: Float, x: Float) -> Float:
        """Multiply a value by a number that is 0 or 1; the product keeps the value's qparams."""

    def with_qparams(self, x: Float, quantization: object) -> Float:
        """Give x the fixed qparams of a rule (`micronpu.ir.op.QuantizationRule`) regardless of calibration."""

    def number(self, x: Float) -> Float | None:
        """Return the number that `decided` converted to a decision; None for other values."""

    def loop(self, x: Float, states: Sequence[Float], step: Step) -> list[Float] | None:
        """Apply a step to each row of x [T, ..]; return the first state after each step [T, ..], then the last states.

        None if loops are not supported.
        """

    def known(self, x: Float) -> Array | None:
        """Return a number or (transposed) constant in float64; None for computed values and parameters in training."""

    def stored(self, x: Float) -> Array | None:
        """Return a constant in its own type, trained or not; None for computed values."""

    def is_constant(self, x: Float) -> bool:
        """True if a value depends on no input."""

    def is_parameter(self, x: Float) -> bool:
        """True if a value is a parameter of the model, which training may change."""

    def is_trained(self, x: Float) -> bool:
        """True if a value is a parameter that is going to be trained, so no decomposition may freeze it."""

    def call(self, x: Float) -> FloatCall | None:
        """Return the call that computes a value; None for inputs, constants and numbers."""

    def readers(self, x: Float = None) -> list[Float]:
        """Return the results of the operators that read a value, by default the result."""

    def ends(self, *, added: bool = True) -> frozenset[str]:
        """Overloads of the operators that read the result, directly or through moves; "" if it is an output of the
        program.

        Args:
            added: follow additions as well as moves.
        """

    def read(self) -> frozenset[int] | None:
        """Indices of the results that are read; None if they are read as a whole."""


Decompose = Callable[[Writer], Any]
"""Writes a decomposition. Returns the new result, `Results`, or None to keep this call of the overload unchanged."""


@dataclass(frozen=True)
class Decomposition(Lowering):
    """Decomposition into other operators, exact up to float rounding unless its sentence states more."""

    name: str  # of the rewrite of the float program, by which it can be disabled
    sentence: str  # its description for users
    decompose: Decompose  # writes it
    early: bool = False  # applied before constant folding, for any element type
    decides: bool = False  # the result is not a float but a decision: a truth value, a position, or a count of such

    @property
    def kind(self) -> Kind:
        return Kind.DECOMPOSITION


LOWERINGS: dict[str, tuple[Lowering, ...]] = {}


def add_lowering(lowering: Lowering) -> None:
    """Register a lowering; an overload has one operator or table, and one decomposition of a name."""
    known = LOWERINGS.get(lowering.overload, ())
    if isinstance(lowering, Decomposition):
        if any(isinstance(w, Decomposition) and w.name == lowering.name for w in known):
            raise InternalError(f"Two decompositions of {lowering.overload} are called {lowering.name}.")
    elif any(w.kind is not Kind.DECOMPOSITION for w in known):
        raise InternalError(f"Two operators import {lowering.overload}.")
    # Native support comes before decompositions.
    LOWERINGS[lowering.overload] = tuple(sorted((*known, lowering), key=lambda w: w.kind is Kind.DECOMPOSITION))


Function = TypeVar("Function", bound=Decompose)


FACTS: dict[str, Facts] = {}
"""The facts of each overload that has some."""
_NOTHING = Facts()


def facts_of(overload: str) -> Facts:
    """Return the facts of an overload: its own, or those of the one that is not in place, or that takes tensors."""
    name, _, form = overload.partition(".")
    plain = f"{name.rstrip('_')}.{form}"
    return FACTS.get(overload) or FACTS.get(plain) or FACTS.get(plain.replace(".Scalar", ".Tensor")) or _NOTHING


def states(*overloads: str, facts: Facts | None) -> None:
    """Declare the facts of overloads, if any; lowerings take them as an argument, if all overloads have the same.

    Raises:
        InternalError: the facts of an overload are stated already.
    """
    if facts is None:
        return
    for overload in overloads:
        if overload in FACTS:
            raise InternalError(f"The facts of {overload} are stated twice.")
        FACTS[overload] = facts


def decomposes(
    *overloads: str, early: bool = False, decides: bool = False, facts: Facts | None = None
) -> Callable[[Function], Function]:
    """Register ``decompose(write)`` for overloads; the function's name is that of the rewrite, its docstring the
    description for users.

    Decompositions of one overload are tried in the order of registration.

    Args:
        early, decides: see `Decomposition`.
        facts: of the overloads.
    """

    def register(decompose: Function) -> Function:
        name = decompose.__name__.lstrip("_").removesuffix("_decomposed")
        sentence = " ".join(docstring(decompose).split("\n\n")[0].split())
        if not sentence:
            raise InternalError(f"The decomposition {name} has no docstring, which is what users read.")
        for overload in overloads:
            add_lowering(Decomposition(overload, name, sentence, decompose, early=early, decides=decides))
        states(*overloads, facts=facts)
        return decompose

    return register


def decompositions() -> dict[str, str]:
    """Description of every decomposition, by name."""
    found = {w.name: w.sentence for lowerings in LOWERINGS.values() for w in lowerings if isinstance(w, Decomposition)}
    return dict(sorted(found.items()))
