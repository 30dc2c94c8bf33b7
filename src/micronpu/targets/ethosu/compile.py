"""Compile one partition: graph to payload, with the plan of the fewest cycles."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from typing_extensions import Self

from micronpu.base.errors import UnsupportedError
from micronpu.container.payload import layout_of, reference_artifacts
from micronpu.container.payload import pack as pack_reference
from micronpu.container.trace import StreamTrace, graph_key, key_of, traced
from micronpu.emit.written import WrittenModel
from micronpu.ir.graph import Graph, Node, Tensor
from micronpu.ir.pattern import is_made_two_in_four
from micronpu.partition.device import CompiledPartition, Intermediates, NamedData, RefusedPartitionError, graph_for_npu
from micronpu.passes.layout import FoldTransposeIntoLinear
from micronpu.passes.pipeline import DEFAULT, Pipeline
from micronpu.report.memory import CODE, WEIGHTS
from micronpu.report.verdict import Reason
from micronpu.targets.ethosu.costs import costs_of, estimated
from micronpu.targets.ethosu.faster import LEAST_GAIN, candidate, could_be_faster, proved_by
from micronpu.targets.ethosu.host import prove
from micronpu.targets.ethosu.host.prove import Checked, StreamDiffersError, checked
from micronpu.targets.ethosu.legalize import emitters_of
from micronpu.targets.ethosu.options import EthosUOptions
from micronpu.targets.ethosu.payload import COMMANDS, CONSTANTS, pack, parse
from micronpu.targets.ethosu.plans import UNCHAINED, Planned, Searched, VelaPlan, best_plan, compiled, objections
from micronpu.targets.ethosu.recall import known_plan
from micronpu.targets.ethosu.rewrites import in_parts
from micronpu.targets.ethosu.rules import HINT, RULE, SENTENCE, ethosu_policy
from micronpu.targets.ethosu.schedule.prefetch import PrefetchResult
from micronpu.targets.ethosu.stream import STREAM_IDENTIFIERS, reads_sparse
from micronpu.targets.ethosu.vela.compiler import OPERATOR, VelaError, VelaProgram, optimised

_MUCH_MEMORY = 256 * 1024
"""Minimum scratch memory for weights, in bytes, at which splitting their operations is tried."""
_LESS_MEMORY = 0.9


@dataclass(frozen=True, kw_only=True)
class EthosUPartition(CompiledPartition):
    """A partition for Ethos-U after compilation.

    Attributes:
        spec: what it was compiled for.
        nodes: index of the graph's node for each operator of Vela's input. These operators are the identifiers of
            the debug handles.
        program, plan, rewrites, waiting, prefetch, searched: see `Planned`.
        others: cost of the other plans.
        trace: operators that the operations of the stream implement.
        shares: True if several methods share its constants.
        beside: bytes of constants in the program outside of the payload, as far as they count for this partition.
    """

    spec: EthosUOptions
    nodes: tuple[int, ...]
    program: VelaProgram
    plan: VelaPlan
    others: tuple[VelaPlan, ...]
    rewrites: Mapping[str, int]
    trace: StreamTrace
    waiting: int = 0
    prefetch: PrefetchResult | None = None
    searched: Searched | None = None
    shares: bool = False
    beside: int = 0

    @property
    def written(self) -> tuple[int, ...]:
        return self.nodes

    @property
    def model(self) -> WrittenModel:
        """Vela's input, written again on demand, since it is as large as the network and rarely needed."""
        return emitters_of(self.spec)[self.plan.format](self.graph)

    @property
    def flatbuffer(self) -> bytes:
        return bytes(self.model.data)

    @property
    def litert_operator(self) -> str:
        return OPERATOR

    def as_litert(
        self, inputs: Sequence[tuple[str, Tensor]], outputs: Sequence[tuple[str, Tensor]]
    ) -> tuple[object, tuple[str, bytes]]:
        program = self.program
        if self.spec.is_io_separate:  # in LiteRT's delegate they are inside of the scratch memory
            flags = tuple(flag for flag in self.spec.extra_flags if not flag.startswith("--separate-io"))
            program = plan_partition(self.graph, replace(self.spec, separate_io=False, extra_flags=flags)).program
        return optimised(program, inputs, outputs)

    def program_bytes(self) -> Mapping[str, int]:
        """Vela writes weights and tables as one block; blocks in separate files are excluded."""
        inside = len(self.program.constants) if len(self.data) > len(self.program.constants) else 0
        return {CODE: min(len(self.program.commands), len(self.data)), WEIGHTS: self.beside if self.shares else inside}

    def within(self, program: bytes) -> Self:
        made = super().within(program)
        held = isinstance(self.program.constants, memoryview)
        return replace(made, program=replace(self.program, constants=parse(made.data).constants)) if held else made

    @property
    def npu_sram(self) -> int:
        return self.program.sram_bytes

    @property
    def prefetched(self) -> int:
        return self.prefetch.scratch if self.prefetch is not None and not self.prefetch.objection else 0


def compile_graph(graph: Graph, spec: EthosUOptions) -> EthosUPartition:
    """Compile an imported graph that is fully delegated; it is changed in place."""
    before = graph.clone()
    planned = plan_partition(graph_for_npu(graph, ethosu_policy(spec)), spec, before)
    return write_partition(planned, spec, before.first_operator())


def plan_partition(
    graph: Graph, spec: EthosUOptions, before: Graph | None = None, pipeline: Pipeline = DEFAULT
) -> Planned:
    """Compile a copy of a partition's graph with all promising plans; return the best.

    Args:
        before: the graph before the passes, for the intermediate files.
        pipeline: the passes.

    Raises:
        RefusedPartitionError: Vela refuses the graph, although it accepts each operator alone.
        MemoryLimitError: it needs more SRAM than available.
        FileError: an intermediate file cannot be written.
    """
    files = Intermediates(spec.intermediates_dir, (before or graph).first_operator())
    files.write_passes(before or graph, spec.passes_of(pipeline))
    try:
        best = _known(graph, spec)
    except VelaError as error:
        raise _refused(graph, spec, error) from error
    if before is not None and spec.accelerator.skips_zeros and _patterned(before) - _patterned(best.graph):
        return _better_in_order(best, before, spec, pipeline)
    return best


def _known(graph: Graph, spec: EthosUOptions) -> Planned:
    """Cached `best_plan`, with prefetched weights if the options allow them."""

    def plan() -> Planned:
        best = best_plan(graph, spec, memory_limit=spec.max_sram_bytes or None)
        return _scheduled(best, spec) if spec.prefetch and spec.memories is not None else best

    return known_plan(graph, spec, plan)


def _scheduled(best: Planned, spec: EthosUOptions) -> Planned:
    """Prefetch the weights of a plan, for large operators in parts, if that pays."""
    whole = candidate(best.program, spec, best.ran)
    program = best.program if whole is None else whole.program
    if could_be_faster(program, spec) or (whole is not None and whole.prefetch.scratch >= _MUCH_MEMORY):
        parts = _in_parts(best, program, spec)
        if parts is not None:
            return parts
    return best if whole is None else best.scheduled(whole, spec)


def _in_parts(best: Planned, whole: VelaProgram, spec: EthosUOptions) -> Planned | None:
    """Split large operators and prefetch their weights; return None if that does not improve the whole program."""
    graph = best.graph.clone()
    if not (used := in_parts(graph, spec.disabled_passes)):
        return None
    try:
        emitted = emitters_of(spec)[best.plan.format](graph)
        program = compiled(graph, emitted, spec, dict(best.plan.options))
        alike = proved_by(best.ran, program, graph, spec)
        found = Checked(program, ran=alike) if alike is not None else checked(graph, emitted, program, spec)
        if found.objection:
            return None
    except UnsupportedError:  # keep the existing plan
        return None
    parts = candidate(found.program, spec, found.ran)
    if parts is None:
        return None
    made = parts.program
    faster = made.cycles < (1 - LEAST_GAIN) * whole.cycles
    smaller = made.cycles <= whole.cycles and made.scratch_size < _LESS_MEMORY * whole.scratch_size
    if not (faster or smaller):
        return None
    divided = replace(
        best,
        graph=graph,
        emitted=emitted,
        rewrites={**best.rewrites, **used},
        waiting=found.waiting,
        unproved=found.unproved,
    )
    planned = divided.scheduled(parts, spec)
    if planned.prefetch is None or planned.prefetch.objection:
        return None
    scratch = planned.program.scratch_size - best.program.scratch_size
    return replace(planned, prefetch=replace(planned.prefetch, cycles=best.program.cycles, scratch=scratch))


def _written(graph: Graph, model: WrittenModel) -> list[Node]:
    return [graph.nodes[number] for number in model.nodes]


def _origins(graph: Graph, model: WrittenModel) -> str:
    """Origins in the user's model of a written model's operators, as JSON."""
    rows = [
        {
            "operator": index,
            "computes": str(node.op),
            "nodes": node.origin.nodes,
            "module": node.origin.module,
            "source": node.origin.source,
            "debug_handles": node.origin.debug_handles,
            "passes": node.origin.passes,
        }
        for index, node in enumerate(_written(graph, model))
    ]
    return json.dumps(rows, indent=1) + "\n"


def accept_partition(graph: Graph, spec: EthosUOptions) -> None:
    """Raise `RefusedPartitionError` or `MemoryLimitError` unless Vela compiles a graph to a usable program, unchanged
    or by some plan."""
    if _objections(graph, spec):
        plan_partition(graph, spec)


def write_partition(best: Planned, spec: EthosUOptions, name: str) -> EthosUPartition:
    """Pack Vela's result for a partition, which has the name of its first operator."""
    files = Intermediates(spec.intermediates_dir, name)
    graph, model, program = best.graph, best.emitted, best.program
    files.write("graph_after.txt", lambda: f"{graph}\n")
    suffix = "tflite" if best.plan.format == "litert" else "tosa"
    files.write(f"model.{suffix}", functools.partial(bytes, model.data))
    handles = {i: graph.nodes[n].origin.debug_handles for i, n in enumerate(model.nodes)}
    # Operations without node have an empty entry: tools would assign an identifier without entry to another node.
    joined = _joined_handles(graph, model.nodes, program.sources)
    handles |= {STREAM_IDENTIFIERS + k: joined.get(source, ()) for k, source in enumerate(program.sources)}
    external = external_blocks(program, spec)
    operators = tuple(traced(type(n.op).__name__, n.origin.source) for n in _written(graph, model))
    trace = StreamTrace(operators, program.sources)
    # The host cannot load a separate file. Whether the simulator models the stream does not matter here: the payload
    # must not depend on the installed tools.
    carried = _host_graph(graph, model) if spec.carry_graph or external else b""
    payload, named = stored(program, external, trace, carried)
    # Omit the constants beside the payload if the payload contains them.
    constants = bytes(program.constants) if CONSTANTS in external else parse(payload).constants
    if spec.debug_info:
        files.write("debug.json", lambda: _origins(graph, model))
    files.write("payload.bin", lambda: payload)
    files.write("report.json", lambda: _describe(program))
    estimate = estimated(program, spec.for_estimates)
    formats = zip(program.sources, reads_sparse(program.commands), strict=False)
    return EthosUPartition(
        data=payload,
        graph=graph,
        debug_handles=handles,
        named_data=named,
        name=name,
        spec=spec,
        nodes=model.nodes,
        program=replace(program, constants=constants),
        trace=trace,
        plan=best.plan,
        others=tuple(p for p in best.plans if p is not best.plan),
        rewrites=best.rewrites,
        unproved=best.unproved,
        waiting=best.waiting,
        prefetch=best.prefetch,
        searched=best.searched,
        costs=costs_of(estimate, model.nodes, spec.accelerator, program.clock_hz / 1e6),
        sparse=frozenset(model.nodes[s] for s, sparse in formats if sparse and 0 <= s < len(model.nodes)),
        constant_bytes=len(program.constants),
        cycles=estimate.cycles,
        bus=estimate.bus,
    )


def stored(
    program: VelaProgram, external: Mapping[str, tuple[str, NamedData]], trace: StreamTrace, carried: bytes
) -> tuple[bytes, dict[str, NamedData]]:
    """Return the payload of a program, and its named data.

    Args:
        external: blocks to store outside the payload: name of the block to key and data.
        carried: the integer graph that a host may run instead, or b"".
    """
    payload = pack(program, {block: key for block, (key, _) in external.items()})
    packed = trace.pack()
    named = {**dict(external.values()), key_of(payload, packed): NamedData(packed)}
    if carried:
        named[graph_key(payload)] = NamedData(carried)
    return payload, named


def _patterned(graph: Graph) -> set[str]:
    found: set[str] = set()
    for node in graph.nodes:
        if any(t.data is not None and is_made_two_in_four(t.data) for t in node.inputs):
            found.update(node.origin.nodes)
    return found


def _better_in_order(best: Planned, before: Graph, spec: EthosUOptions, pipeline: Pipeline) -> Planned:
    """Compare a plan with one that keeps the columns of linear layers in the program's order; return the better.

    Weights after a flattened image are usually reordered, so that the image need not be; if they are 2:4 sparse, that
    may cost more than it saves.
    """
    if FoldTransposeIntoLinear.name in spec.disabled_passes:
        return best
    ordered = replace(spec, disabled_passes=(*spec.disabled_passes, FoldTransposeIntoLinear.name))
    try:
        graph = graph_for_npu(before.clone(), replace(ethosu_policy(ordered), pipeline=pipeline))
        found = _known(graph, ordered)
    except UnsupportedError:  # keep the existing plan
        return best
    plan = replace(found.plan, name=f"{found.plan.name}, linear layers in the program's order")
    if found.program.cycles >= best.program.cycles:
        return replace(best, plans=(*best.plans, plan))
    return replace(found, plan=plan, plans=(plan, *best.plans))


def _joined_handles(graph: Graph, written: Sequence[int], sources: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Debug handles of the nodes that an operation of the stream computes, by the operator that Vela names for it.

    Vela fuses tables, clamps and reshapes with another operator, and names only that.
    """
    named = {s: written[s] for s in sources if 0 <= s < len(written)}
    own = {h for i in named.values() for h in graph.nodes[i].origin.debug_handles}
    producers, index = graph.producers(), {node: i for i, node in enumerate(graph.nodes)}
    carrier: dict[int, int] = {}
    found: dict[int, dict[int, None]] = {}
    for i, node in enumerate(graph.nodes):
        before = next((producers[t] for t in node.inputs if t in producers), None)
        handles = dict.fromkeys(node.origin.debug_handles)
        if i in named.values():
            found[i] = {**handles, **found.get(i, {})}
            carrier[i] = i
        elif before is not None and index[before] in carrier and before.output.type.size == node.output.type.size:
            carrier[i] = carrier[index[before]]
            found[carrier[i]].update((h, None) for h in handles if h not in own)
    return {s: tuple(found[i]) for s, i in named.items()}


def _objections(graph: Graph, spec: EthosUOptions, *, checks: bool = True) -> str:
    """Reasons why no input format works for a graph, or optionally why its streams are wrong; "" if there are none."""
    found, emitters = dict[str, str](), emitters_of(spec)
    for format in emitters if spec.via == "auto" else (spec.via,):
        try:
            emitted = emitters[format](graph)
            for options in ((), UNCHAINED):
                program = compiled(graph, emitted, spec, dict(options))
                objection = checked(graph, emitted, program, spec).objection if checks else ""
                if not objection:
                    return ""
                found.setdefault(format, objection)
        except UnsupportedError as error:  # from Vela, or from an operator that the format cannot express
            found.setdefault(format, error.what)
    return objections(found)


def _refused(graph: Graph, spec: EthosUOptions, error: VelaError) -> RefusedPartitionError:
    """Find the operator to blame: the last one of the shortest refused prefix of the graph."""
    what, differs = error.what, isinstance(error, StreamDiffersError)
    taken, refused = 0, len(graph.nodes)
    while refused - taken > 1:
        middle = (taken + refused) // 2
        if found := _objections(_beginning(graph, middle), spec, checks=differs):
            refused, what = middle, found
        else:
            taken = middle
    rule, sentence, hint = (prove.RULE, prove.SENTENCE, prove.HINT) if differs else (RULE, SENTENCE, HINT)
    origin = graph.nodes[refused - 1].origin
    return RefusedPartitionError(what, {n: Reason(rule, sentence, what, n, origin.source, hint) for n in origin.nodes})


def _beginning(graph: Graph, count: int) -> Graph:
    """The first nodes of a graph; values read by the others become outputs."""
    nodes, rest = graph.nodes[:count], graph.nodes[count:]
    read = {t for n in rest for t in n.inputs} | set(graph.outputs)
    outputs = [t for n in nodes for t in n.outputs if t in read]
    used = {t for n in nodes for t in n.inputs}
    return Graph([t for t in graph.inputs if t in used], outputs, list(nodes))


def _host_graph(graph: Graph, model: WrittenModel) -> bytes:
    """The integer graph in the open container that the plug-in runs."""
    artifacts = reference_artifacts(model.data, len(graph.inputs), len(graph.outputs), len(model.nodes))
    return pack_reference(layout_of(graph, artifacts), artifacts)


def external_blocks(program: VelaProgram, spec: EthosUOptions) -> dict[str, tuple[str, NamedData]]:
    """Blocks that the user wants in separate files: name of the block to key and data."""
    wanted = {
        COMMANDS: (spec.external_commands, program.commands),
        CONSTANTS: (spec.external_weights, bytes(program.constants)),
    }
    return {block: named_block(data, file) for block, (file, data) in wanted.items() if file}


def named_block(data: bytes, file: str) -> tuple[str, NamedData]:
    """Key and data of a block outside the payload: in the file ``file``, or in the program if that is ""."""
    return hashlib.sha256(f"{file}\0".encode() + data).hexdigest(), NamedData(data, file)


def _describe(program: VelaProgram) -> str:
    plain = ("cycles", "clock_hz", "memory", "scratch_size", "fast_scratch_size")
    figures = {
        **{name: getattr(program, name) for name in plain},
        "command_bytes": len(program.commands),
        "constant_bytes": len(program.constants),
        "layers": [asdict(layer) for layer in program.layers],
    }
    return json.dumps(figures, indent=2) + "\n"
