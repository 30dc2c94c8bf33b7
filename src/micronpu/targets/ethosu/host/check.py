"""A command stream beside the integer graph that it was made of, operation by operation, on the inputs of a run.

An operation of the graph may be several of the stream: parts of its result, which are put together again.  One that
Vela has fused with the next, or whose result it keeps in another order, cannot be told apart from a wrong one by
itself; the outputs decide whether there is something wrong, and the operations where it begins.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from micronpu.base.errors import OptionError, PayloadError
from micronpu.host.litert_executor import Buffer, LiteRtProgram, OperatorTrace
from micronpu.host.tosa_executor import TosaProgram
from micronpu.ir.graph import Graph
from micronpu.ir.interpreter import interpret
from micronpu.program.pte import PteSummary
from micronpu.targets.ethosu import BACKEND
from micronpu.targets.ethosu.host.simulator import Operation
from micronpu.targets.ethosu.stream.trace import StreamTrace, graph_key, trace_of

Array = np.ndarray[Any, Any]


class Reference(Protocol):
    """Computes what a stream should."""

    def compute(self, inputs: Sequence[Array]) -> tuple[Mapping[int, Array], list[Array]]:
        """Results of steps, as far as they are known, and outputs."""
        ...

    def step(self, operator: int) -> int:
        """The step that an operator of the program that Vela was given belongs to."""
        ...


@dataclass(frozen=True)
class GraphReference:
    """micronpu's own reference interpreter.

    Attributes:
        graph: that was written for Vela.
        nodes: for each operator of the written program the index of the graph's node.
    """

    graph: Graph
    nodes: Sequence[int]

    def compute(self, inputs: Sequence[Array]) -> tuple[Mapping[int, Array], list[Array]]:
        given = [
            np.asarray(a).reshape(t.shape).view(t.type.dtype.numpy)
            for a, t in zip(inputs, self.graph.inputs, strict=True)
        ]
        made: dict[int, Array] = {}
        outputs = interpret(self.graph, given, observe=lambda _, value: made.update({len(made): value}))
        return made, outputs

    def step(self, operator: int) -> int:
        return self.nodes[operator]  # several operators of TOSA stand for one node


@dataclass(frozen=True)
class CarriedReference:
    """The kernels that run the graph which a program carries; of a TOSA program they give the outputs alone."""

    program: LiteRtProgram | TosaProgram

    def compute(self, inputs: Sequence[Array]) -> tuple[Mapping[int, Array], list[Array]]:
        known: dict[int, Array] = {}

        def note(operator: OperatorTrace) -> None:
            if isinstance(self.program, LiteRtProgram) and len(operator.outputs) == 1:
                known[operator.index] = operator.outputs[0]

        arrays = [np.ascontiguousarray(a) for a in inputs]
        outputs = [np.empty(b.size, np.uint8) for b in self.program.outputs]
        given = [
            Buffer(a.ctypes.data, a.nbytes, b.scalar_type) for a, b in zip(arrays, self.program.inputs, strict=True)
        ]
        taken = [
            Buffer(a.ctypes.data, a.nbytes, b.scalar_type) for a, b in zip(outputs, self.program.outputs, strict=True)
        ]
        self.program.run_traced(given, taken, note)
        return known, [a.view(b.numpy_type) for a, b in zip(outputs, self.program.outputs, strict=True)]

    def step(self, operator: int) -> int:
        return operator


@dataclass
class StreamCheck:
    """Compares the runs of one payload with its graph.

    Attributes:
        trace: which operator each operation of the stream stems from.
        reference: what to compare with; None until the carried graph is loaded.
        equal: steps of the last run whose result is the graph's, element for element.
        steps: those that its stream names.
    """

    trace: StreamTrace
    reference: Reference | None = None
    equal: int = 0
    steps: int = 0
    _parts: dict[int, list[Array]] = field(default_factory=dict, repr=False)

    def begin(self) -> None:
        """Forgets the last run."""
        self._parts = {}

    def watch(self, operation: Operation) -> None:
        """Keeps what an operation has written."""
        source = self.trace.sources[operation.index] if operation.index < len(self.trace.sources) else -1
        if source >= 0 and operation.value is not None:
            self._parts.setdefault(source, []).append(operation.value)

    def end(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Compares.

        Raises:
            PayloadError: an output differs; the message names the first operation that does, too.
        """
        assert self.reference is not None
        known, wanted = self.reference.compute(inputs)
        parts: dict[int, list[Array]] = {}
        names: dict[int, str] = {}
        for source in sorted(self._parts):
            step = self.reference.step(source)
            parts.setdefault(step, []).extend(self._parts[source])
            names.setdefault(step, str(self.trace.operators[source]))
        first, self.equal, self.steps = "", 0, len(parts)
        for step in sorted(parts.keys() & known.keys()):
            found = [_difference(v, known[step]) for v in _candidates(parts[step], known[step].size)]
            self.equal += "" in found
            if found and "" not in found and not first:
                first = f"{found[0]} of step {step}, {names[step]}"
        for number, (mine, theirs) in enumerate(zip(outputs, wanted, strict=True)):
            if wrong := _difference(mine, theirs):
                where = f"; the first that differ inside are {first}" if first else ""
                raise PayloadError(
                    f"The command stream computes another result than its graph: {wrong} of output {number}{where}.",
                    hint="another version of Vela, or another Ethos-U; and please report it",
                )


def checks_of(summary: PteSummary, name: str, references: Mapping[bytes, Reference]) -> dict[bytes, StreamCheck]:
    """A comparison for each payload that is a command stream.

    Raises:
        OptionError: there is none, or nothing to compare it with.
    """
    found: dict[bytes, StreamCheck] = {}
    for delegate, payload in summary.payloads:
        if delegate != BACKEND:
            continue
        trace = trace_of(payload, summary.named_data)
        if trace is None or not (payload in references or graph_key(payload) in summary.named_data):
            raise OptionError(
                f"{name} carries no integer graph, with which its command stream could be compared.",
                hint="compile it with carry_graph=True, or CompiledProgram.run(..., check=True)",
            )
        found[payload] = StreamCheck(trace, references.get(payload))
    if not found:
        raise OptionError(
            f"{name} has no command stream of an Ethos-U, so that there is nothing to check.",
            hint="run it without check=True: its integer graph is what the laptop computes",
        )
    return found


def _candidates(parts: Sequence[Array], size: int) -> Iterator[Array]:
    """What the result of a step may be: slices by rows, columns or channels put together, or what was written last.

    A transposition is an operation whose strides lead elsewhere: its last result is offered in every order of axes.
    """
    if len(parts) > 1 and sum(p.size for p in parts) == size:
        for axis in (2, 0, 1):
            if len({p.shape[:axis] + p.shape[axis + 1 :] for p in parts}) == 1:
                yield np.concatenate(parts, axis)
    if parts[-1].size == size:
        yield from (parts[-1].transpose(axes) for axes in itertools.permutations(range(3)))


def _difference(found: Array, wanted: Array) -> str:
    """How many values differ and by how much; "" where none does."""
    a, b = found.reshape(-1), wanted.reshape(-1)
    if a.size != b.size:
        return f"{a.size:,} instead of {b.size:,} values"
    # A stream knows only the size of elements: bool and int8, say, are compared as bytes.
    a, b = (v.view(f"i{v.itemsize}").astype(np.int64) for v in (a, b))
    distance = np.abs(a - b)
    wrong = int(np.count_nonzero(distance))
    return f"{wrong:,} of {a.size:,} values, by up to {int(distance.max()):,}," if wrong else ""
