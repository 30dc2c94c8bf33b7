"""Compare a command stream with its integer graph, operation by operation, on the inputs of a run.

An operation of the graph may become several of the stream, which compute parts of its result. If Vela has fused one
with the next, or stores its result in another order, it cannot be distinguished from a wrong one; so the outputs decide
whether there is an error, and the operations where it begins.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from micronpu.base.errors import PayloadError
from micronpu.container.trace import StreamTrace, graph_key, trace_of
from micronpu.host.proof import Reference
from micronpu.targets.ethosu.host.simulator import SimulatedOperation

Array = np.ndarray[Any, Any]


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
        """Record the result of an operation."""
        source = self.trace.sources[operation.index] if operation.index < len(self.trace.sources) else -1
        if source >= 0 and operation.value is not None:
            self._parts.setdefault(source, []).append(operation.value)

    def end(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Compare a run with the graph.

        Raises:
            PayloadError: an output differs; the message also names the first operation that differs.
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
