"""Verify a command stream against the flatbuffer it was compiled from, on random integers.

The stream runs in the simulator of `micronpu.targets.ethosu.host.simulator`, the flatbuffer in LiteRT's reference
kernels or in `micronpu.host.tosa_run`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from micronpu.base.arrays import Array
from micronpu.base.errors import MicroNpuError
from micronpu.base.memory import release
from micronpu.host import tosa_executor
from micronpu.host.litert_executor import HostProgram, LiteRtProgram, Mode
from micronpu.host.tosa_executor import TosaProgram
from micronpu.ir.graph import Graph
from micronpu.targets.ethosu.host.simulator import (
    WEIGHTS_OF_ONE_RUN,
    EthosUSimulator,
    NotModelledError,
    SimulationError,
    TooEarlyError,
)
from micronpu.targets.ethosu.payload import EthosUPayload

ROWS = 2
"""Minimum number of random inputs: one of the full range, and one near zero."""
MOST_ROWS = 16
_LARGE = 30_000_000
"""Multiply-accumulates above which one input is run, not two: a tenth of a second in the reference kernels."""
_INFORMATIVE = 8
"""Minimum number of unsaturated elements of each output that must be equal, since wrong sums saturate as well; outputs
of few elements need more inputs for that."""
_EXTREMES = 0.125
"""Fraction of random input elements that are the smallest or largest integer."""
_NEAR = 8
"""Largest integer in standard deviations of inputs near zero: saturation would hide reads from a wrong address."""


class ProofOutcome(Enum):
    """Result of a comparison."""

    EQUAL = "equal"
    DIFFERENT = "different"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class StreamRun:
    """A stream's run on random integers."""

    inputs: list[Array]
    outputs: list[Array]


@dataclass(frozen=True)
class StreamProof:
    """The result of a comparison.

    Attributes:
        detail: the difference, as one clause; "" if all elements are equal.
        early: byte offset of an operation that reads data before it is written; None if that is not the error.
        ran: the first run of the stream, if requested and if all elements are equal.
    """

    outcome: ProofOutcome
    detail: str = ""
    early: int | None = None
    ran: StreamRun | None = None


def random_integers(shape: Sequence[int], numpy_type: Any, seed: int, *, near: bool = False, count: int = 1) -> Array:
    """Integers of the full range of an 8- or 16-bit type, with its limits more frequent than by chance.

    Wider integers are indices, all different if the range is large enough.

    Args:
        near: around zero instead.
        count: range of indices.
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
    inputs: Sequence[tuple[Sequence[int], object]], counts: Sequence[int], seed: int, row: int
) -> list[Array]:
    """Integers to run a program on; every second set is near zero.

    Args:
        inputs: shape and NumPy type of each.
        counts: range of each input that holds indices; else 1.
    """
    return [
        random_integers(shape, kind, seed + 97 * row + i, near=bool(row % 2), count=counts[i])
        for i, (shape, kind) in enumerate(inputs)
    ]


def is_large(graph: Graph) -> bool:
    """True if one run of a graph suffices for its verification."""
    return macs_of(graph) > _LARGE


def macs_of(graph: Graph) -> int:
    """Multiply-accumulates of one run of a graph."""
    return sum(n.op.macs(n.output.type, *n.input_types) for n in graph.nodes if len(n.outputs) == 1)


def compare(
    content: EthosUPayload,
    accelerator: str,
    model: bytes,
    inputs: Sequence[tuple[Sequence[int], object]],
    rows: int = ROWS,
    counts: Sequence[int] = (),
    most: int = MOST_ROWS,
    *,
    seed: int = 0,
    keep: bool = False,
) -> StreamProof:
    """Run both on random integers, one after the other, so that their memory is not needed at the same time.

    Args:
        content: of the delegate's payload, including all blocks.
        model: LiteRT or TOSA flatbuffer with the same inputs and outputs in the same order.
        inputs: shape and NumPy type of each.
        rows: minimum number of inputs; every second one is near zero.
        counts: range of each input that holds indices; default 1.
        most: maximum number of inputs, if the outputs of fewer are inconclusive.
        seed: of the inputs.
        keep: include the first run in the result.
    """
    numbered = counts or [1] * len(inputs)
    ran: list[StreamRun] = []
    refused: SimulationError | None = None
    informative = np.zeros(len(content.outputs), np.int64)

    try:
        simulator = EthosUSimulator(accelerator, weight_limit=WEIGHTS_OF_ONE_RUN)
        for row in range(max(rows, most)):
            if row >= rows and informative.min(initial=_INFORMATIVE) >= _INFORMATIVE:
                break
            given = integers_for(inputs, numbered, seed, row)
            ran.append(StreamRun(given, simulator.run(content, given)))
            informative += [_inside(array) for array in ran[-1].outputs]
        del simulator
        release()
    except NotModelledError as error:
        return StreamProof(ProofOutcome.UNKNOWN, error.what.rstrip("."))
    except SimulationError as error:
        refused = error
    except MicroNpuError as error:  # the simulator is not available
        return StreamProof(ProofOutcome.UNKNOWN, error.what.rstrip("."))
    try:
        kernels = TosaProgram if model[4:8] == tosa_executor.IDENTIFIER else LiteRtProgram
        graph = kernels(model, Mode.REFERENCE)
    except MicroNpuError as error:  # an operator that the host's kernels refuse
        return StreamProof(ProofOutcome.UNKNOWN, error.what.rstrip("."))
    if refused is not None:
        early = refused.offset if isinstance(refused, TooEarlyError) else None
        return StreamProof(ProofOutcome.DIFFERENT, refused.what.rstrip("."), early)
    return _against(graph, ran) or StreamProof(ProofOutcome.EQUAL, ran=ran[0] if keep else None)


def _against(graph: HostProgram, ran: Sequence[StreamRun]) -> StreamProof | None:
    """Compare the runs with the host's kernels; return None if all outputs are equal."""
    for given, ours in ((r.inputs, r.outputs) for r in ran):
        try:
            theirs = graph.outputs_of(given)
        except MicroNpuError as error:
            return StreamProof(ProofOutcome.UNKNOWN, error.what.rstrip("."))
        for number, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            b = b.view(a.dtype).reshape(a.shape)  # a stream has only element sizes
            wrong = int((a != b).sum())
            if wrong:
                steps = int(np.abs(a.astype(np.int64) - b.astype(np.int64)).max())
                detail = f"{wrong:,} of {a.size:,} values of output {number} differ, by up to {steps:,}"
                return StreamProof(ProofOutcome.DIFFERENT, detail)
    return None


def _inside(array: Array) -> int:
    """Number of elements that are not at a limit of their type."""
    ends = np.iinfo(array.dtype) if array.dtype.kind == "i" else None
    return array.size if ends is None else int(((array > ends.min) & (array < ends.max)).sum())
