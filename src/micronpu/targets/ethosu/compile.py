"""One partition: graph to payload, by the way that costs the fewest cycles."""

from __future__ import annotations

import functools
import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from micronpu.container.payload import PayloadLayout, TensorSlot
from micronpu.container.payload import pack as pack_reference
from micronpu.container.reference import reference_artifacts
from micronpu.emit.litert import LiteRtModel
from micronpu.emit.tosa import TosaModel
from micronpu.errors import UnsupportedError
from micronpu.ir.graph import Graph
from micronpu.partition.device import CompiledPartition, NamedData, RefusedError
from micronpu.partition.intermediates import Intermediates
from micronpu.passes import run_passes
from micronpu.report.verdict import Reason
from micronpu.targets.ethosu.costs import costs_of
from micronpu.targets.ethosu.cures import FlattenSlices, cure_graph
from micronpu.targets.ethosu.emitters import emitters_of
from micronpu.targets.ethosu.options import EthosUCompileSpec
from micronpu.targets.ethosu.patches import StridesIntoChannels
from micronpu.targets.ethosu.payload import pack
from micronpu.targets.ethosu.rules import HINT, RULE, SENTENCE, judge_of
from micronpu.targets.ethosu.strategies import Outcome, choose, compiled
from micronpu.targets.ethosu.streams import SoundStreams
from micronpu.targets.ethosu.vela import VelaError, VelaProgram

KEY = "micronpu_graph_"


@dataclass(frozen=True, kw_only=True)
class Form:
    """A graph in a format that Vela takes, and what Vela makes of it.

    Attributes:
        via: "litert" or "tosa".
        model: the flatbuffer; for each of its operators the node of the graph.
    """

    via: str
    model: LiteRtModel | TosaModel
    program: VelaProgram


@dataclass(frozen=True, kw_only=True)
class EthosUPartition(CompiledPartition):
    """A partition for Ethos-U after compilation.

    Attributes:
        form: what was chosen.  The host runs its model, and its operators are the identifiers of the debug handles.
        choice: how it was compiled, and what that costs.
        others: what the other ways would have cost.
        forms: name of a form of operators, see `micronpu.targets.ethosu.forms`, to how many have it.
    """

    form: Form
    choice: Outcome
    others: tuple[Outcome, ...]
    forms: Mapping[str, int]

    @property
    def program(self) -> VelaProgram:
        """What Vela made of the chosen form, with its estimates."""
        return self.form.program


def compile_graph(graph: Graph, spec: EthosUCompileSpec) -> EthosUPartition:
    """Runs passes, emission, Vela and packing on an imported graph, which is changed in place.

    Raises:
        RefusedError: Vela refuses the graph, whose operators it takes one by one.
        MemoryLimitError: it needs more SRAM than there is.
        FileError: an intermediate file cannot be written.
    """
    name = graph.first_operator()
    files = Intermediates(spec.intermediates_dir, name)
    files.write("graph_before.txt", lambda: f"{graph}\n")
    cure_graph(graph, judge_of(spec))
    run_passes(graph)
    changed = [step.run(graph) for step in (SoundStreams(), FlattenSlices(), StridesIntoChannels())]
    if any(changed):
        graph.rename()
    try:
        choice = choose(graph, spec, memory_limit=spec.max_sram_bytes or None, emitters=emitters_of(spec))
    except VelaError as error:
        raise _refused(graph, spec, error.what) from error
    graph, via = choice.graph, choice.outcome.strategy.via
    chosen = Form(via=via, model=choice.emitted, program=choice.program)
    files.write("graph_after.txt", lambda: f"{graph}\n")
    files.write(f"model.{'tflite' if via == 'litert' else 'tosa'}", functools.partial(bytes, chosen.model.data))
    handles = {i: graph.nodes[n].origin.debug_handles for i, n in enumerate(chosen.model.nodes)}
    external = _external(chosen.program, spec)
    payload = pack(chosen.program, {block: key for block, (key, _) in external.items()})
    named = dict(external.values())
    if spec.carry_graph or external:  # a host does not find what stands outside of the program
        named[host_graph_key(payload)] = NamedData(_host_graph(graph, chosen.model))
    files.write("payload.bin", lambda: payload)
    files.write("report.json", lambda: _describe(chosen.program))
    return EthosUPartition(
        payload=payload,
        graph=graph,
        debug_handles=handles,
        named_data=named,
        name=name,
        form=chosen,
        choice=choice.outcome,
        others=tuple(o for o in choice.outcomes if o is not choice.outcome),
        forms=choice.forms,
        costs=costs_of(chosen.program, chosen.model.nodes, spec.accelerator),
    )


def _objections(graph: Graph, spec: EthosUCompileSpec) -> list[str]:
    """Why Vela refuses a graph in every format that it may be given; empty where it takes one."""
    found, emitters = [], emitters_of(spec)
    for via in emitters if spec.via == "auto" else (spec.via,):
        try:
            compiled(graph, emitters[via](graph), spec)
            return []
        except UnsupportedError as error:  # Vela's, or an operator that the format cannot express
            found.append(error.what)
    return found


def _refused(graph: Graph, spec: EthosUCompileSpec, what: str) -> RefusedError:
    """Who is to blame: the operator that the shortest refused beginning of the graph ends with."""
    taken, refused = 0, len(graph.nodes)
    while refused - taken > 1:
        middle = (taken + refused) // 2
        objections = _objections(_beginning(graph, middle), spec)
        if objections:
            refused, what = middle, objections[0]
        else:
            taken = middle
    origin = graph.nodes[refused - 1].origin
    return RefusedError(what, {n: Reason(RULE, SENTENCE, what, n, origin.source, HINT) for n in origin.nodes})


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


def _host_graph(graph: Graph, model: LiteRtModel | TosaModel) -> bytes:
    """The integer graph in the open container that the plug-in runs."""
    layout = PayloadLayout(
        inputs=tuple(TensorSlot(i, i in graph.channels_last_inputs) for i in range(len(graph.inputs))),
        outputs=tuple(TensorSlot(i, i in graph.channels_last_outputs) for i in range(len(graph.outputs))),
        num_arguments=len(graph.inputs),
    )
    return pack_reference(
        layout, reference_artifacts(model.data, len(graph.inputs), len(graph.outputs), len(model.nodes))
    )


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
