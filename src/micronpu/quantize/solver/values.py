"""Values of a float program, with the facts that decide their qparams."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from micronpu.ir.facts import NOWHERE, Form, Jumps
from micronpu.ir.op import QuantizationRule

Numbers: TypeAlias = torch.Tensor | npt.NDArray[np.float64]


@dataclass(eq=False, slots=True, repr=False)
class Value:
    """The result of an operator, an input or a constant of a float program, or the list of its results.

    Attributes:
        name: in the program.
        index: position in the program.
        operands: the values that it is computed from, in order, each once.
        readers: the values that are computed from it, in order.
        shape: None for values that are no tensors, such as sizes.
        is_float: True for float32 tensors.
        is_input, is_output: True for inputs of the program, and for the list of its results.
        is_constant: True for values that depend on constants alone.
        is_stored: True for parameters and buffers.
        is_known: True if some device computes its operator with integers.
        rule: annotation rule of a known operator.
        is_supported: True if this device computes it with integers.
        quantized: operands that the rule quantizes; None if one of them is missing, or not float.
        weights: the operand with the weights, or None.
        result: the value with the operator's result: itself, its cast to float, or the batch norm behind it; None if it
            has no float result.
        fuses: True if the operator can compute a clamp behind it.
        is_fusible: True for a clamp that other operators can compute.
        moves: True if the operator only moves or selects elements.
        picks: True if it selects elements of its only float operand by their size.
        is_clamp: True for a clamp.
        clamps_to: its ends, which may be infinite.
        reads_within: ends beyond which an operand of a clamp, or of a function with one behind its operand, counts as
            if it were the end; infinite for others.
        has_long_rows: True for a softmax whose results have many values of less than one LSB.
        softmax_axis: axis of a softmax, or None.
        maximum_axis: axis along which it is the largest element, with the axis kept, or None.
        form: function of its operands.
        first: the first operand, if it is a value.
        second: the second one.
        line: (x, factor, addend) of a value that is ``factor * x + addend``, or None.
        power: exponent c of a value that is the power c of its first operand, or None.
        jumps: where the result jumps, see `micronpu.ir.facts.Facts`.
        is_bounded: True for a function on an interval, at whose ends it is steep.
        is_whole: True if all results are whole numbers.
        is_one_of: True if each element is that of one operand, so that the others may saturate.
        is_kept_or_zero: True for a product of 0 or 1 and its last operand.
        sign_counts: True for a difference that is only compared with zero.
        rewrite_rule: the rule with its qparams, if a rewrite knew them; None for others.
        numbers: returns the numbers of a stored constant; None for others.
        saturates_from: returns the magnitude of operands from which the result is within a margin of its limits at both
            ends; None if there is none.
        axis_before: returns the axis of an operand that a move makes a whole axis of its result, or None.
    """

    name: str
    index: int = 0
    operands: Sequence[Value] = ()
    _: KW_ONLY
    readers: list[Value] = field(default_factory=list)
    shape: tuple[object, ...] | None = None
    is_float: bool = True
    is_input: bool = False
    is_output: bool = False
    is_constant: bool = False
    is_stored: bool = False
    is_known: bool = False
    is_supported: bool = False
    rule: QuantizationRule | None = None
    quantized: Sequence[Value] | None = None
    weights: Value | None = None
    result: Value | None = None
    fuses: bool = False
    is_fusible: bool = False
    moves: bool = False
    picks: bool = False
    is_clamp: bool = False
    clamps_to: tuple[float, float] = (-math.inf, math.inf)
    reads_within: tuple[float, float] = (-math.inf, math.inf)
    has_long_rows: bool = False
    softmax_axis: int | None = None
    maximum_axis: int | None = None
    form: Form | None = None
    first: Value | None = None
    second: Value | None = None
    line: tuple[Value, float, float] | None = None
    power: float | None = None
    jumps: Jumps = NOWHERE
    is_bounded: bool = False
    is_whole: bool = False
    is_one_of: bool = False
    is_kept_or_zero: bool = False
    sign_counts: bool = False
    rewrite_rule: QuantizationRule | None = None
    numbers: Callable[[], Numbers | None] = lambda: None
    saturates_from: Callable[[float], float | None] = lambda margin: None
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

    @property
    def output(self) -> Value:
        return next(value for value in reversed(self.all) if value.is_output)
