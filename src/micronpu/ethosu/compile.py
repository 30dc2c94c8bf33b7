"""One partition: graph to payload, by the way that costs the fewest cycles."""

from __future__ import annotations

import hashlib
import json
import zlib
from dataclasses import asdict, dataclass

from micronpu.emit.litert import LiteRtModel, to_litert
from micronpu.ethosu.options import EthosUCompileSpec
from micronpu.ethosu.payload import pack
from micronpu.ethosu.rules import RULE, SENTENCE
from micronpu.ethosu.vela import VelaError, VelaProgram, compile_flatbuffer
from micronpu.ir.graph import Graph
from micronpu.neutron.converter import ConverterOptions, ReferenceConverter
from micronpu.neutron.payload import PayloadLayout, TensorSlot
from micronpu.neutron.payload import pack as pack_reference
from micronpu.partition.device import CompiledPartition, NamedData, RefusedError
from micronpu.partition.intermediates import Intermediates
from micronpu.partition.verdict import Reason
from micronpu.passes import run_passes

KEY = "micronpu_graph_"


@dataclass(frozen=True, kw_only=True)
class EthosUPartition(CompiledPartition):
    """A partition for Ethos-U after compilation.

    Attributes:
        litert: the LiteRT model of the graph, which the host runs; its operators are the identifiers of the debug
            handles.
        program: what Vela made of it, with its estimates.
    """

    litert: LiteRtModel
    program: VelaProgram


def compile_graph(graph: Graph, spec: EthosUCompileSpec) -> EthosUPartition:
    """Runs passes, emission, Vela and packing on an imported graph, which is changed in place.

    Raises:
        RefusedError: Vela refuses the graph, whose operators it takes one by one.
        FileError: an intermediate file cannot be written.
    """
    name = graph.first_operator()
    files = Intermediates(spec.intermediates_dir, name)
    files.write("graph_before.txt", lambda: f"{graph}\n")
    run_passes(graph)
    files.write("graph_after.txt", lambda: f"{graph}\n")
    litert = to_litert(graph)
    files.write("model.tflite", lambda: litert.data)
    try:
        program = compile_flatbuffer(litert.data, spec)
    except VelaError as error:
        raise _refused(graph, spec, error) from error
    handles = {i: graph.nodes[n].origin.debug_handles for i, n in enumerate(litert.nodes)}
    external = _external(program, spec)
    payload = pack(program, {block: key for block, (key, _) in external.items()})
    named = dict(external.values())
    if spec.host_runnable:
        named[host_graph_key(payload)] = NamedData(_host_graph(graph, litert))
    files.write("payload.bin", lambda: payload)
    files.write("report.json", lambda: _describe(program))
    return EthosUPartition(
        payload=payload, graph=graph, debug_handles=handles, named_data=named, name=name, litert=litert, program=program
    )


def _refused(graph: Graph, spec: EthosUCompileSpec, error: VelaError) -> RefusedError:
    """Who is to blame: the operator that the shortest refused beginning of the graph ends with."""
    taken, refused, what = 0, len(graph.nodes), error.what
    while refused - taken > 1:
        middle = (taken + refused) // 2
        try:
            compile_flatbuffer(to_litert(_beginning(graph, middle)).data, spec)
            taken = middle
        except VelaError as found:
            refused, what = middle, found.what
    origin = graph.nodes[refused - 1].origin
    hint = "another Ethos-U, or another form of the model"
    return RefusedError(what, {n: Reason(RULE, SENTENCE, what, n, origin.source, hint) for n in origin.nodes})


def _beginning(graph: Graph, count: int) -> Graph:
    """The first nodes of a graph; what others read is an output."""
    nodes, rest = graph.nodes[:count], graph.nodes[count:]
    read = {t for n in rest for t in n.inputs} | set(graph.outputs)
    outputs = [t for n in nodes for t in n.outputs if t in read]
    used = {t for n in nodes for t in n.inputs}
    return Graph([t for t in graph.inputs if t in used], outputs, list(nodes))


def host_graph_key(payload: bytes) -> str:
    """Key of the integer graph that belongs to a payload: CRC-32 and size, as native/ethosu.cpp computes it."""
    return f"{KEY}{zlib.crc32(payload):08x}_{len(payload):x}"


def _host_graph(graph: Graph, litert: LiteRtModel) -> bytes:
    """The integer graph in the open container that the plug-in runs."""
    layout = PayloadLayout(
        inputs=tuple(TensorSlot(i, False) for i in range(len(graph.inputs))),
        outputs=tuple(TensorSlot(i, False) for i in range(len(graph.outputs))),
        num_arguments=len(graph.inputs),
    )
    return pack_reference(layout, ReferenceConverter().convert(litert.data, ConverterOptions("host")))


def _external(program: VelaProgram, spec: EthosUCompileSpec) -> dict[str, tuple[str, NamedData]]:
    """Blocks that stand outside the payload: name of the block to key and data."""
    wanted = {
        "cmd_data": (spec.external_commands, program.commands),
        "weight_data": (spec.external_weights, program.constants),
    }
    return {
        block: (hashlib.sha256(f"{file}\0".encode() + data).hexdigest(), NamedData(data, file))
        for block, (file, data) in wanted.items()
        if file
    }


def _describe(program: VelaProgram) -> str:
    """Vela's figures as JSON."""
    figures = {
        "cycles": program.cycles,
        "clock_hz": program.clock_hz,
        "memory": program.memory,
        "scratch_size": program.scratch_size,
        "fast_scratch_size": program.fast_scratch_size,
        "command_bytes": len(program.commands),
        "constant_bytes": len(program.constants),
        "layers": [asdict(layer) for layer in program.layers],
    }
    return json.dumps(figures, indent=2) + "\n"
