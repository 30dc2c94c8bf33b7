"""Values of a float program, with the facts that decide their qparams."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from micronpu.ir.facts import ANY, NOWHERE, Form, Interval, Jumps
from micronpu.ir.op import QuantizationRule

Numbers: TypeAlias = torch.Tensor | npt.NDArray[np.float64]


@dataclass(eq=False, slots=True, repr=False)
class Value:
    """The result of an operator, an input or a constant of a float program, or the list of its results."""

    name: str  # in the program
    index: int = 0  # position in the program
    operands: Sequence[Value] = ()  # the values that it is computed from, in order, each once
    _: KW_ONLY
    readers: list[Value] = field(default_factory=list)  # the values that are computed from it, in order
    shape: tuple[object, ...] | None = None  # None for values that are no tensors, such as sizes
    is_float: bool = True  # True for float32 tensors
    is_input: bool = False  # True for inputs of the program
    is_output: bool = False  # True for the list of the program's results
    is_constant: bool = False  # True for values that depend on constants alone
    is_stored: bool = False  # True for parameters and buffers
    is_known: bool = False  # True if some device computes its operator with integers
    is_supported: bool = False  # True if this device computes it with integers
    rule: QuantizationRule | None = None  # annotation rule of a known operator
    # Operands that the rule quantizes; None if one of them is missing, or not float.
    quantized: Sequence[Value] | None = None
    weights: Value | None = None  # the operand with the weights, or None
    # The value with the operator's result: itself, its cast to float, or the batch norm behind it; None if it has no
    # float result.
    result: Value | None = None
    fuses: bool = False  # True if the operator can compute a clamp behind it
    is_fusible: bool = False  # True for a clamp that other operators can compute
    moves: bool = False  # True if the operator only moves or selects elements
    picks: bool = False  # True if it selects elements of its only float operand by their size
    is_clamp: bool = False
    clamps_to: tuple[float, float] = (-math.inf, math.inf)  # its ends, which may be infinite
    # Ends beyond which an operand of a clamp, or of a function with one behind its operand, counts as if it were the
    # end; infinite for others.
    reads_within: tuple[float, float] = (-math.inf, math.inf)
    has_long_rows: bool = False  # True for a softmax whose results have many values of less than one LSB
    softmax_axis: int | None = None  # axis of a softmax, or None
    maximum_axis: int | None = None  # axis along which it is the largest element, with the axis kept, or None
    form: Form | None = None  # function of its operands
    bounds: Interval = ANY  # of all its numbers, for any inputs of the program
    first: Value | None = None  # the first operand, if it is a value
    second: Value | None = None  # the second one
    # (x, factor, addend) of a value that is ``factor * x + addend``, or None.
    line: tuple[Value, float, float] | None = None
    power: float | None = None  # exponent c of a value that is the power c of its first operand, or None
    jumps: Jumps = NOWHERE  # where the result jumps, see `micronpu.ir.facts.Facts`
    is_bounded: bool = False  # True for a function on an interval, at whose ends it is steep
    is_whole: bool = False  # True if all results are whole numbers
    is_one_of: bool = False  # True if each element is that of one operand, so that the others may saturate
    is_kept_or_zero: bool = False  # True for a product of 0 or 1 and its last operand
    sign_counts: bool = False  # True for a difference that is only compared with zero
    rewrite_rule: QuantizationRule | None = None  # the rule with its qparams, if a rewrite knew them; None for others
    numbers: Callable[[], Numbers | None] = lambda: None  # returns the numbers of a stored constant; None for others
    # Returns the magnitude of operands from which the result is within a margin of its limits at both ends; None if
    # there is none.
    saturates_from: Callable[[float], float | None] = lambda margin: None
    # Returns the axis of an operand that a move makes a whole axis of its result, or None.
    axis_before: Callable[[Value, int], int | None] = lambda operand, axis: None

    def __post_init__(self) -> None:
        self.operands = list(dict.fromkeys(self.operands))
        for operand in self.operands:
            operand.readers.append(self)

    def __repr__(self) -> str:
        return self.name

    @property
    def float_operands(self) -> list[Value]:
        return [operand for operand in self.operands if operand.is_float]


Edge: TypeAlias = tuple[Value, Value]
"""A value, and one that reads it."""
Place: TypeAlias = Value | Edge
"""A value, or one that is read by another."""


@dataclass(frozen=True)
class State:
    """A state of the program.

    Attributes:
        name: in the model.
        old, new: its value before and after a call.
        is_float: True for float32.
        source: the user's line that computes the new value, or "".
    """

    name: str
    old: Value
    new: Value
    is_float: bool = True
    source: str = ""


@dataclass(eq=False)
class Values:
    """The values of a program."""

    all: Sequence[Value]  # in the order of the program
    returned: Collection[Value] = ()  # results, without new values of states
    states: Sequence[State] = field(default_factory=tuple)
    is_step: bool = False  # True for the step of a loop, whose inputs the program computes

    @property
    def output(self) -> Value:
        return next(value for value in reversed(self.all) if value.is_output)
