"""One partition: graph to payload, by the way that costs the fewest cycles."""

from __future__ import annotations

from dataclasses import dataclass

from micronpu.emit.litert import LiteRtModel, to_litert
from micronpu.ethosu.options import EthosUCompileSpec
from micronpu.ethosu.payload import pack
from micronpu.ethosu.vela import VelaProgram, compile_flatbuffer
from micronpu.ir.graph import Graph
from micronpu.passes import run_passes


@dataclass(frozen=True)
class CompiledPartition:
    """A partition after compilation.

    Attributes:
        payload: the bytes that the device reads.
        graph: the legalised graph.
        litert: the LiteRT model of it, which the host runs.
        program: what Vela made of it, with its estimates.
        debug_handles: operator index to ExecuTorch's debug handles.
    """

    payload: bytes
    graph: Graph
    litert: LiteRtModel
    program: VelaProgram
    debug_handles: dict[int, tuple[int, ...]]


def compile_graph(graph: Graph, spec: EthosUCompileSpec) -> CompiledPartition:
    """Runs passes, emission, Vela and packing on an imported graph, which is changed in place.

    Raises:
        VelaError: Vela refuses the graph as a whole.
    """
    run_passes(graph)
    litert = to_litert(graph)
    program = compile_flatbuffer(litert.data, spec)
    handles = {i: graph.nodes[n].origin.debug_handles for i, n in enumerate(litert.nodes)}
    return CompiledPartition(pack(program), graph, litert, program, handles)
