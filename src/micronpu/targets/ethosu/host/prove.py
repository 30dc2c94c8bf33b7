"""Verify every stream: run Vela's result and its graph on random integers before the stream is used.

Vela lets operations overlap, sometimes too early. Such an operation is made to wait, which cannot change correct
results.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from micronpu.emit.written import WrittenModel
from micronpu.ir.graph import Graph
from micronpu.ops.indices import rows_numbered
from micronpu.targets.ethosu.options import EthosUOptions
from micronpu.targets.ethosu.payload import checksum
from micronpu.targets.ethosu.stream import made_to_wait
from micronpu.targets.ethosu.vela.compiler import VelaError, VelaProgram

if TYPE_CHECKING:
    from micronpu.targets.ethosu.host.proof import StreamRun

RULE = "stream_computes_graph"
SENTENCE = "The command stream that Vela makes of the operator computes what the operator means."
HINT = "another version of Vela, another Ethos-U, or another form of the model"

_MOST_WAITING = 32
"""Maximum number of operations that are made to wait; each needs another run."""
_SMALL = 2_000_000
"""Maximum multiply-accumulates of all additional inputs, for outputs of few elements."""


class StreamDiffersError(VelaError):
    """Every stream that Vela emits for a graph computes a different result than the graph."""


@dataclass(frozen=True)
class Checked:
    """Result of verifying a program.

    Attributes:
        program: Vela's, or the same with operations that wait.
        objection: reason why it must not be used, or "".
        unproved: reason why it could not be verified, or "".
        waiting: number of operations that were made to wait.
        ran: a run of the program, if another schedule may need it.
    """

    program: VelaProgram
    objection: str = ""
    unproved: str = ""
    waiting: int = 0
    ran: StreamRun | None = None


def checked(graph: Graph, emitted: WrittenModel, program: VelaProgram, spec: EthosUOptions) -> Checked:
    """Verify Vela's program for a graph and the model written from it, unless the options leave that out."""
    if not spec.verify_streams:
        return Checked(program)
    from micronpu.targets.ethosu.faster import may_pay
    from micronpu.targets.ethosu.host.proof import MOST_ROWS, ROWS, ProofOutcome, compare, is_large, macs_of

    inputs = [(t.shape, t.type.dtype.numpy) for t in graph.inputs]
    counts = [rows_numbered(graph, t) for t in graph.inputs]
    rows, waiting = 1 if is_large(graph) else ROWS, 0
    most = min(MOST_ROWS, rows + _SMALL // max(macs_of(graph), 1))
    keep = spec.prefetch and may_pay(program, spec)
    while True:
        seed = checksum(program)
        found = compare(*(program, spec.silicon, emitted.data, inputs, rows, counts, most), seed=seed, keep=keep)
        later = made_to_wait(program.commands, found.early) if found.early is not None else None
        if later is None or waiting == _MOST_WAITING:
            break
        program, waiting = replace(program, commands=later), waiting + 1
    if found.outcome is ProofOutcome.DIFFERENT:
        return Checked(program, f"Vela's program computes another result: {found.detail}.", "", waiting)
    return Checked(program, "", found.detail, waiting, found.ran)
