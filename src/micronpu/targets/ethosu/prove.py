"""No stream is trusted unseen: what Vela made of a graph runs beside it, on random integers, before anyone gets it."""

from __future__ import annotations

from collections.abc import Callable

from micronpu.ir.graph import Graph
from micronpu.targets.ethosu.emitters import Emitted
from micronpu.targets.ethosu.options import EthosUCompileSpec
from micronpu.targets.ethosu.payload import pack
from micronpu.targets.ethosu.vela import VelaError, VelaProgram

RULE = "stream_computes_graph"
SENTENCE = "The command stream that Vela makes of the operator computes what the operator means."
HINT = "another version of Vela, another Ethos-U, or another form of the model"

_LARGE = 30_000_000
"""Multiply-accumulates from which one input is run, not two: a tenth of a second in the reference kernels."""


class StreamDiffersError(VelaError):
    """Every stream that Vela makes of a graph computes another result than the graph."""


Check = Callable[[Graph, Emitted, VelaProgram], tuple[str, str]]
"""Of a graph, what it was written as, and what Vela made of it: why it must not be used, and why nobody can tell."""


def check_of(spec: EthosUCompileSpec) -> Check:
    """The comparison for an accelerator."""

    def check(graph: Graph, emitted: Emitted, program: VelaProgram) -> tuple[str, str]:
        from micronpu.runtime.proof import ROWS, Outcome, compare

        inputs = [(t.shape, t.type.dtype.numpy) for t in graph.inputs]
        macs = sum(n.op.macs(n.output.type, *n.input_types) for n in graph.nodes if len(n.outputs) == 1)
        found = compare(pack(program), spec.target, emitted.data, inputs, 1 if macs > _LARGE else ROWS)
        if found.outcome is Outcome.DIFFERENT:
            return f"Vela's program computes another result: {found.detail}.", ""
        return "", found.detail

    return check
