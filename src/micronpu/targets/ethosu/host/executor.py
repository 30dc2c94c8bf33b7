"""Run the command stream of an Ethos-U partition in the open simulator, with the same bytes as on the chip.

The interface is that of `micronpu.host.litert_executor.LiteRtProgram`. If the simulator does not model a feature of the
stream, and the program carries its integer graph, the graph runs instead.

A stream is compared with its graph operation by operation, on the inputs of a run. An operation of the graph may become
several of the stream, which compute parts of its result. If Vela has fused one with the next, or stores its result in
another order, it cannot be distinguished from a wrong one; so the outputs decide whether there is an error, and the
operations where it begins.
"""

from __future__ import annotations

import ctypes
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from micronpu.base.arrays import Array
from micronpu.base.callers import warn
from micronpu.base.errors import NotOnHostError, PayloadError
from micronpu.container.payload import bad_payload
from micronpu.container.trace import StreamTrace, graph_key, trace_of
from micronpu.host.litert_executor import Buffer, Executor, OperatorTrace
from micronpu.host.proof import Reference
from micronpu.program.pte import recorded_size
from micronpu.targets.ethosu.host.simulator import (
    WEIGHTS_OF_ONE_RUN,
    EthosUSimulator,
    NotModelledError,
    SimulatedOperation,
    SimulationError,
    Watcher,
)
from micronpu.targets.ethosu.payload import VelaIO, parse
from micronpu.targets.ethosu.stream import STREAM_IDENTIFIERS, accelerator_of, results_of


@dataclass
class StreamCheck:
    """Compares runs of one payload with its graph.

    Attributes:
        trace: the operator of each operation of the stream.
        reference: graph to compare with; None until the carried graph is loaded.
        equal: steps of the last run whose result equals the graph's, element by element.
        steps: those that the stream names.
    """

    trace: StreamTrace
    reference: Reference | None = None
    equal: int = 0
    steps: int = 0
    _parts: dict[int, list[Array]] = field(default_factory=dict, repr=False)

    def begin(self) -> None:
        """Discard the last run."""
        self._parts = {}

    def watch(self, operation: SimulatedOperation) -> None:
        source = self.trace.sources[operation.index] if operation.index < len(self.trace.sources) else -1
        if source >= 0 and operation.value is not None:
            self._parts.setdefault(source, []).append(operation.value)

    def end(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Compare a run with the graph; the error for a different output also names the first operation that
        differs."""
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


def check_of(payload: bytes, named_data: Mapping[str, bytes], reference: Reference | None) -> StreamCheck | None:
    """Return a comparison for a payload; None if there is no graph to compare with."""
    trace = trace_of(payload, named_data)
    if trace is None or (reference is None and graph_key(payload) not in named_data):
        return None
    return StreamCheck(trace, reference)


def _candidates(parts: Sequence[Array], size: int) -> Iterator[Array]:
    """Candidates for the result of a step: concatenated slices of rows, columns or channels, or the last write.

    A transposition is an operation with permuted strides: its last result is offered in every order of axes.
    """
    if len(parts) > 1 and sum(p.size for p in parts) == size:
        for axis in (2, 0, 1):
            if len({p.shape[:axis] + p.shape[axis + 1 :] for p in parts}) == 1:
                yield np.concatenate(parts, axis)
    if parts[-1].size == size:
        yield from (parts[-1].transpose(axes) for axes in itertools.permutations(range(3)))


def _difference(found: Array, wanted: Array) -> str:
    """Number and magnitude of differing values; "" if there are none."""
    a, b = found.reshape(-1), wanted.reshape(-1)
    if a.size != b.size:
        return f"{a.size:,} instead of {b.size:,} values"
    # A stream has only element sizes: bool and int8, for example, are both compared as bytes.
    a, b = (v.view(f"i{v.itemsize}").astype(np.int64) for v in (a, b))
    distance = np.abs(a - b)
    wrong = int(np.count_nonzero(distance))
    return f"{wrong:,} of {a.size:,} values, by up to {int(distance.max()):,}," if wrong else ""


class StreamProgram:
    """One command stream, ready to run; a check compares every run with the graph, operation by operation, and the
    carried integer graph runs if the simulator does not model the stream."""

    def __init__(
        self, payload: bytes | memoryview, graph: Callable[[], Executor] | None = None, check: StreamCheck | None = None
    ) -> None:
        self._content = parse(payload)
        self.inputs: Sequence[object] = self._content.inputs
        self.outputs: Sequence[object] = self._content.outputs
        # Most programs run once, for verification, so start with a small cache; further runs enlarge it.
        self._simulator = EthosUSimulator(accelerator_of(self._content.commands), weight_limit=WEIGHTS_OF_ONE_RUN)
        self._has_run = False
        self._make_graph = graph
        self._graph: Executor | None = None
        self._check = check

    def run(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> None:
        """Compute all outputs. Inputs and outputs are in the order of the payload."""
        if self._graph is not None:
            return self._graph.run(inputs, outputs)
        try:
            self._run(inputs, outputs, None)
        except NotModelledError as error:
            self._fall_back(error).run(inputs, outputs)

    def run_traced(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], sink: Callable[[OperatorTrace], None]
    ) -> None:
        """Like `run`; `sink` is called after each operation of the NPU, with its result."""
        if self._graph is not None:
            return self._graph.run_traced(inputs, outputs, sink)
        start = time.perf_counter_ns()

        def watch(operation: SimulatedOperation) -> None:
            nonlocal start
            elapsed = time.perf_counter_ns() - start
            values = () if operation.value is None else (operation.value[None],)
            sink(OperatorTrace(STREAM_IDENTIFIERS + operation.index, operation.name, elapsed, values))
            start = time.perf_counter_ns()

        try:
            self._run(inputs, outputs, watch)
        except NotModelledError as error:
            self._fall_back(error).run_traced(inputs, outputs, sink)

    def _fall_back(self, error: NotModelledError) -> Executor:
        if self._make_graph is None:
            raise NotOnHostError(
                f"The Ethos-U program cannot run here: {error.what}",
                hint="compile the model with carry_graph=True, so that its integer graph can run in its place",
            ) from error
        warn(f"The integer graph runs instead of the command stream: {error.what}")
        self._graph = self._make_graph()
        return self._graph

    def _run(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], watch: Watcher | None) -> None:
        _check("Input", inputs, self._content.inputs)
        _check("Output", outputs, self._content.outputs)
        arrays = [
            np.frombuffer(ctypes.string_at(b.address, b.size) if b.size else b"", f"<i{tensor.element_size}")
            for b, tensor in zip(inputs, self._content.inputs, strict=True)
        ]
        check = self._check
        if check is not None:
            check.begin()
        if self._has_run:
            self._simulator.keep_weights()
        self._has_run = True
        try:
            made = self._simulator.run(
                self._content, arrays, watch=_both(watch, None if check is None else check.watch)
            )
        except NotModelledError:
            raise
        except SimulationError as error:
            raise bad_payload(f"The Ethos-U program fails: {error.what}") from error
        if check is not None:
            check.end(arrays, made)
        for array, buffer in zip(made, outputs, strict=True):
            ctypes.memmove(buffer.address, array.ctypes.data, buffer.size)


def recorded_bytes(payload: bytes | memoryview) -> int:
    """Bytes that a traced run of a command stream records: the results of its operations; 0 for a damaged one."""
    try:
        return sum(map(recorded_size, results_of(parse(payload).commands)))
    except PayloadError:
        return 0  # the plug-in reports it


def _both(first: Watcher | None, second: Watcher | None) -> Watcher | None:
    if first is None or second is None:
        return first or second

    def watch(operation: SimulatedOperation) -> None:
        first(operation)
        second(operation)

    return watch


def _check(what: str, buffers: Sequence[Buffer], tensors: Sequence[VelaIO]) -> None:
    for position, (buffer, tensor) in enumerate(zip(buffers, tensors, strict=True)):
        if buffer.size != tensor.bytes:
            raise bad_payload(
                f"{what} {position} of the NPU partition has {tensor.bytes} bytes, but the program around it passes "
                f"{buffer.size}."
            )
