"""A command stream beside the flatbuffer that it was made of, on the same integers: no stream is trusted unseen.

The stream runs in the simulator of `micronpu.targets.ethosu.host.simulator`, the flatbuffer in LiteRT's reference
kernels or in `micronpu.host.tosa_run`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np

from micronpu.base.errors import MicroNpuError
from micronpu.base.memory import release
from micronpu.host import tosa_executor
from micronpu.host.litert_executor import Buffer, LiteRtProgram, Mode, scalar_type_of
from micronpu.host.tosa_executor import TosaProgram
from micronpu.ir.graph import Graph
from micronpu.targets.ethosu.host.simulator import (
    WEIGHTS_OF_ONE_RUN,
    EthosUSimulator,
    Footprint,
    NotModelledError,
    SimulationError,
    TooEarlyError,
)
from micronpu.targets.ethosu.payload import EthosUPayload
from micronpu.targets.ethosu.schedule.operations import Access
from micronpu.targets.ethosu.schedule.ranges import Ranges

Array = np.ndarray[Any, Any]

ROWS = 2
"""How many random inputs are run at the least: one of the whole range, and one near zero."""
MOST_ROWS = 16
_LARGE = 30_000_000
"""Multiply-accumulates from which one input is run, not two: a tenth of a second in the reference kernels."""
_TELLING = 8
"""Elements of each output that have to be equal elsewhere than at an end of their range, where wrong sums end, too; for
an output of a few elements that takes more inputs."""
_EXTREMES = 0.125
"""Part of the elements of random inputs that are the smallest or largest integer."""
_NEAR = 8
"""The largest integer in standard deviations of inputs near zero: what is large everywhere saturates, and what was read
from a wrong place does not show behind that."""


class Outcome(Enum):
    """What a comparison has shown."""

    EQUAL = "equal"
    DIFFERENT = "different"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Ran:
    """A stream's run on random integers.

    Attributes:
        footprints: of each operation, transfers included.
    """

    inputs: list[Array]
    outputs: list[Array]
    footprints: list[Footprint]

    @cached_property
    def accesses(self) -> list[Access]:
        """What each operation reads and writes, transfers included."""
        return [Access(f.work, Ranges.in_order(f.reads), Ranges.in_order(f.writes)) for f in self.footprints]


@dataclass(frozen=True)
class Proof:
    """The result of a comparison.

    Attributes:
        detail: what was seen, one clause; "" where all elements are equal.
        early: bytes from the first command to that of an operation which reads what the one before has not written yet;
            None where that is not what is wrong.
        ran: the first of the stream's runs, where it was asked for and all elements are equal.
    """

    outcome: Outcome
    detail: str = ""
    early: int | None = None
    ran: Ran | None = None


def random_integers(shape: Sequence[int], numpy_type: Any, seed: int, *, near: bool = False, count: int = 1) -> Array:
    """Integers of the whole range of a type of 8 or 16 bits, its ends more often than by chance.

    Wider integers are indices, which are all different as long as there are enough of them.

    Args:
        near: around zero, instead.
        count: of the things that indices number.
    """
    kind = np.dtype(numpy_type)
    dice = np.random.default_rng(seed)
    if kind.itemsize > 2:
        return np.resize(dice.permutation(count), tuple(shape)).astype(kind)
    limits = np.iinfo(kind)
    if near:
        return np.asarray(dice.normal(0.0, limits.max / _NEAR, tuple(shape)).clip(limits.min, limits.max).astype(kind))
    values = dice.integers(limits.min, limits.max, size=tuple(shape), dtype=kind, endpoint=True)
    ends = dice.random(tuple(shape))
    values[ends < _EXTREMES / 2] = limits.min
    values[ends > 1 - _EXTREMES / 2] = limits.max
    return values


def integers_for(
    inputs: Sequence[tuple[Sequence[int], Any]], counts: Sequence[int], seed: int, row: int
) -> list[Array]:
    """Integers to run a program on; every second row of them is near zero.

    Args:
        inputs: shape and NumPy type of each.
        counts: of the things that each input numbers, if it does; else 1.
    """
    return [
        random_integers(shape, kind, seed + 97 * row + i, near=bool(row % 2), count=counts[i])
        for i, (shape, kind) in enumerate(inputs)
    ]


def is_large(graph: Graph) -> bool:
    """Whether one run of a graph is all that its proof takes."""
    return macs_of(graph) > _LARGE


def macs_of(graph: Graph) -> int:
    """Multiply-accumulates of one run of a graph."""
    return sum(n.op.macs(n.output.type, *n.input_types) for n in graph.nodes if len(n.outputs) == 1)


def compare(
    content: EthosUPayload,
    accelerator: str,
    model: bytes,
    inputs: Sequence[tuple[Sequence[int], Any]],
    rows: int = ROWS,
    counts: Sequence[int] = (),
    most: int = MOST_ROWS,
    *,
    seed: int = 0,
    footprints: bool = False,
) -> Proof:
    """Runs both on random integers, one after the other: what the one needs of memory the other has given back.

    Args:
        content: of the payload of a delegate, all blocks inside.
        model: LiteRT or TOSA flatbuffer with the same inputs and outputs in the same order.
        inputs: shape and NumPy type of each.
        rows: how many inputs at the least; every second one is near zero.
        counts: of the things that each input numbers, if it does; 1 of each unless given.
        most: how many inputs where the outputs of fewer tell too little.
        seed: of the inputs.
        footprints: keep the first run with those of its operations.
    """
    numbered = counts or [1] * len(inputs)
    ran: list[Ran] = []
    refused: SimulationError | None = None
    telling = np.zeros(len(content.outputs), np.int64)

    try:
        simulator = EthosUSimulator(accelerator, weight_limit=WEIGHTS_OF_ONE_RUN)
        for row in range(max(rows, most)):
            if row >= rows and telling.min(initial=_TELLING) >= _TELLING:
                break
            given = integers_for(inputs, numbered, seed, row)
            seen: list[Footprint] | None = [] if footprints and not row else None
            ran.append(Ran(given, simulator.run(content, given, footprints=seen), seen or []))
            telling += [_inside(array) for array in ran[-1].outputs]
        del simulator
        release()
    except NotModelledError as error:
        return Proof(Outcome.UNKNOWN, error.what.rstrip("."))
    except SimulationError as error:
        refused = error
    except MicroNpuError as error:  # nothing to run it with
        return Proof(Outcome.UNKNOWN, error.what.rstrip("."))
    try:
        kernels = TosaProgram if model[4:8] == tosa_executor.IDENTIFIER else LiteRtProgram
        graph = kernels(model, Mode.REFERENCE, len(content.inputs), len(content.outputs))
    except MicroNpuError as error:  # an operator that the host's kernels refuse
        return Proof(Outcome.UNKNOWN, error.what.rstrip("."))
    if refused is not None:
        early = refused.offset if isinstance(refused, TooEarlyError) else None
        return Proof(Outcome.DIFFERENT, refused.what.rstrip("."), early)
    return _against(graph, ran) or Proof(Outcome.EQUAL, ran=ran[0] if footprints else None)


def _against(graph: TosaProgram | LiteRtProgram, ran: Sequence[Ran]) -> Proof | None:
    """What speaks against a stream when its graph is computed on the host; None where all is equal."""
    for given, ours in ((r.inputs, r.outputs) for r in ran):
        theirs = [np.empty(array.shape, array.dtype) for array in ours]
        try:
            graph.run([_buffer(g) for g in given], [_buffer(t, s) for t, s in zip(theirs, _types(graph), strict=True)])
        except MicroNpuError as error:
            return Proof(Outcome.UNKNOWN, error.what.rstrip("."))
        for number, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            wrong = int((a != b).sum())
            if wrong:
                steps = int(np.abs(a.astype(np.int64) - b.astype(np.int64)).max())
                detail = f"{wrong:,} of {a.size:,} values of output {number} differ, by up to {steps:,}"
                return Proof(Outcome.DIFFERENT, detail)
    return None


def _inside(array: Array) -> int:
    """How many elements are at no end of their type's range."""
    ends = np.iinfo(array.dtype) if array.dtype.kind == "i" else None
    return array.size if ends is None else int(((array > ends.min) & (array < ends.max)).sum())


def _types(graph: LiteRtProgram | TosaProgram) -> list[int]:
    """ExecuTorch's numbers of the outputs' element types."""
    return [output.scalar_type for output in graph.outputs]


def _buffer(array: Array, scalar_type: int | None = None) -> Buffer:
    return Buffer(array.ctypes.data, array.nbytes, scalar_type_of(array.dtype) if scalar_type is None else scalar_type)
