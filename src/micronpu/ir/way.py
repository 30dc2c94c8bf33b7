"""What an ATen overload may become: the one registry of ways, and what of a device chooses among them.

An overload becomes an operator, a table of a function of one element, or a composition of other overloads, which is
written before the program is quantized, so that every intermediate value gets a grid of its own.  All of them stand in
the modules of `micronpu.ops`.  Importers, annotation, support tables, hints and `micronpu passes` read them here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, TypeVar

import numpy.typing as npt

from micronpu.base.errors import InternalError
from micronpu.ir.aten import AtenArguments
from micronpu.ir.types import DType


class Kind(Enum):
    """What an overload becomes."""

    OPERATOR = "operator"
    TABLE = "table"
    COMPOSITION = "composition"


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What a device computes with.

    Attributes:
        tables: any function of one element, as a table of its results; comparisons and choices with it.
        activations: element types of activations, the default first.
        index_types: integer types of positions, as of the rows of an embedding, that the device reads.
        lookups: rows of a matrix are picked and replaced by positions known at run time.
        positions: of the largest among at most 256 elements, as int8 numbers.
        resizes: images to any size, and not by some factors only.
        resizes_by_axis: images by 1, 2, 4 or 8 along each axis, with aligned corners or without, and not by the same
            factor along both.
        zero_points: products of two computed matrices whatever their zero points are.
    """

    tables: bool = False
    activations: tuple[DType, ...] = (DType.INT8,)
    index_types: tuple[DType, ...] = ()
    lookups: bool = False
    positions: bool = False
    resizes: bool = False
    resizes_by_axis: bool = False
    zero_points: bool = False

    @property
    def has_int16(self) -> bool:
        """Whether activations may be int16."""
        return DType.INT16 in self.activations

    def computes(self, overload: str) -> bool:
        """Whether an overload has a way that is an operator, or a table where the device has these."""
        return any(
            way.kind is Kind.OPERATOR or (way.kind is Kind.TABLE and self.tables) for way in WAYS.get(overload, ())
        )

    def compositions(self, overload: str) -> tuple[Composition, ...]:
        """The compositions to try for an overload, in order; none where the device has a table for it.

        Those of decisions are written in either case: what the table gives has to become a number.
        """
        ways = WAYS.get(overload, ())
        in_table = self.tables and any(way.kind is Kind.TABLE for way in ways)
        return tuple(way for way in ways if isinstance(way, Composition) and (way.decides or not in_table))


@dataclass(frozen=True)
class Way:
    """One thing that an overload may become.

    Attributes:
        overload: ATen name with overload, such as ``conv2d.default``.
    """

    overload: str

    @property
    def kind(self) -> Kind:
        """Which of the kinds it is."""
        raise NotImplementedError


Float = Any
"""A value of the float program: a node of it, which operators hand on and never look into, or a number."""


@dataclass(frozen=True)
class Call:
    """What computes a value of the float program.

    Attributes:
        overload: of the operator.
        given: its arguments by the names of the schema, defaults filled in.
        readers: how many operators read the value.
    """

    overload: str
    given: Mapping[str, Any]
    readers: int


@dataclass(frozen=True)
class Results:
    """New values for some results of an operator that has several; the others have no reader."""

    values: Mapping[int, Float]


Step = Callable[["Writer", Float, list[Float]], list[Float]]
"""Writes a step of a loop, with a writer for the step's own graph: from a row and the states to the new states."""


class Writer(AtenArguments, Protocol):
    """Writes operators in front of one that they replace; what a composition is given.

    Operators are named by their overloads, so that compositions need no torch.
    """

    @property
    def given(self) -> Mapping[str, Any]:
        """The arguments of the operator by the names of the schema, defaults filled in."""

    @property
    def capabilities(self) -> Capabilities:
        """Of the device that the program is for."""

    @property
    def unevenness(self) -> float:
        """Of a norm, how many times larger than small rows calibration has seen large ones; 1 of other operators."""

    @property
    def row_size(self) -> float:
        """The size of the largest row of a norm that calibration has seen."""

    def __call__(self, overload: str, *arguments: Any) -> Float:
        """A new operator's result."""

    def constant(self, value: float | npt.NDArray[Any], before: Float = None) -> Float:
        """A constant operand; a number becomes a tensor of one element.

        Args:
            before: a computed value; the operator to be replaced unless given.
        """

    def shape(self, x: Float = None) -> tuple[int, ...]:
        """Shape of a value; of the result, or of the first of several, unless one is given."""

    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of all results."""

    def dtype(self, x: Float = None) -> DType | None:
        """Element type of a value, as for `shape`; None where micronpu has no such type."""

    def kept(self) -> Float:
        """The result of the operator, which stays; what is written from now on stands behind it."""

    def beside(self, x: Float, overload: str, *arguments: Any) -> Float:
        """A new operator's result next to what computes x, for all who ask: one that is there already is given again.

        It stands behind x where it reads x, and before it elsewhere.
        """

    def once(self, x: Float, make: Callable[[], Float | None]) -> Float | None:
        """What ``make`` gives, who is asked once for x and for all who ask of it."""

    def change(self, x: Float, **arguments: Any) -> Float:
        """x, with other arguments for the operator that computes it, by the names of the schema.

        Only the operator to be replaced may read x.  Arrays become constants.
        """

    def decided(self, number: Float) -> Float:
        """A number as the decision that it stands for, in the type of the operator's result; see `number`."""

    def only_sign(self, x: Float) -> Float:
        """x, which what is written next asks for its sign alone: its grid may be fine, and end before its values do."""

    def kept_or_zero(self, number: Float, x: Float) -> Float:
        """The product of a number that is 0 or 1 and a value, on the value's grid."""

    def on_grid(self, x: Float, quantization: Any) -> Float:
        """x, on the fixed grid of an annotation rule (`micronpu.ir.op.Quantization`), whatever calibration sees."""

    def number(self, x: Float) -> Float | None:
        """The number that a decision was made of by `decided`; None for others."""

    def loop(self, x: Float, states: Sequence[Float], step: Step) -> list[Float] | None:
        """Calls a step for each row of x [T, ..]: the first state after each step [T, ..], then the last states.

        None where loops are not known of.
        """

    def known(self, x: Float) -> npt.NDArray[Any] | None:
        """A number, a constant or the transpose of one in float64; None for what is computed or still trained."""

    def stored(self, x: Float) -> npt.NDArray[Any] | None:
        """A constant in its own type, be it trained or not; None for what is computed."""

    def is_constant(self, x: Float) -> bool:
        """Whether a value depends on no input."""

    def is_parameter(self, x: Float) -> bool:
        """Whether a value is a parameter of the model, which training may change."""

    def is_trained(self, x: Float) -> bool:
        """Whether a value is a parameter that is going to be trained, which no composition may freeze."""

    def call(self, x: Float) -> Call | None:
        """What computes a value; None for inputs, constants and numbers."""

    def readers(self) -> list[Float]:
        """The results of the operators that read the result."""

    def ends(self, *, added: bool = True) -> frozenset[str]:
        """Overloads of the operators that the result arrives at, moved on its way; "" where it is a result of the
        program.

        Args:
            added: it may be added to others on its way, too.
        """

    def read(self) -> frozenset[int] | None:
        """Which of several results somebody reads; None where they are read as a whole."""


Compose = Callable[[Writer], Any]
"""Writes a composition.  Returns the new result, `Results`, or None where this call of the overload stays as it is."""


@dataclass(frozen=True)
class Composition(Way):
    """Other operators that compute what an overload computes, up to float rounding unless its sentence says more.

    Attributes:
        name: of the rewrite of the float program, by which it can be left out.
        sentence: what users read about it.
        compose: writes it.
        early: written before constants are folded, whatever the element type.
        decides: the operator's result is no float but a decision: a truth value, a position, or a count of some.
    """

    name: str
    sentence: str
    compose: Compose
    early: bool = False
    decides: bool = False

    @property
    def kind(self) -> Kind:
        return Kind.COMPOSITION


WAYS: dict[str, tuple[Way, ...]] = {}


def add_way(way: Way) -> None:
    """Registers a way.

    Raises:
        InternalError: it is imported already, be it as an operator or as a table, or has a composition of that name.
    """
    known = WAYS.get(way.overload, ())
    if isinstance(way, Composition):
        if any(isinstance(w, Composition) and w.name == way.name for w in known):
            raise InternalError(f"Two compositions of {way.overload} are called {way.name}.")
    elif any(w.kind is not Kind.COMPOSITION for w in known):
        raise InternalError(f"Two operators import {way.overload}.")
    # What the device has comes before what has to be put together.
    WAYS[way.overload] = tuple(sorted((*known, way), key=lambda w: w.kind is Kind.COMPOSITION))


Function = TypeVar("Function", bound=Compose)


def composes(*overloads: str, early: bool = False, decides: bool = False) -> Callable[[Function], Function]:
    """Registers ``compose(write)`` for overloads; its name is that of the rewrite, its doc-string what users read.

    Of several for one overload, the first that is registered is tried first.

    Args:
        early, decides: see `Composition`.
    """

    def register(compose: Function) -> Function:
        name = compose.__name__.lstrip("_").removesuffix("_composed")
        sentence = " ".join((inspect.getdoc(compose) or "").split("\n\n")[0].split())
        if not sentence:
            raise InternalError(f"The composition {name} has no doc-string, which is what users read.")
        for overload in overloads:
            add_way(Composition(overload, name, sentence, compose, early=early, decides=decides))
        return compose

    return register


def compositions() -> dict[str, str]:
    """The sentence of every composition, by its name."""
    found = {w.name: w.sentence for ways in WAYS.values() for w in ways if isinstance(w, Composition)}
    return dict(sorted(found.items()))
