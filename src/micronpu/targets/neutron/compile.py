"""Compile one partition: graph to payload."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from micronpu.base import timing
from micronpu.base.errors import ConverterError, NothingLeftError
from micronpu.container.payload import Artifacts, layout_of, pack
from micronpu.emit.litert import to_litert
from micronpu.emit.written import WrittenModel
from micronpu.ir.graph import Graph, Node, Tensor
from micronpu.ops.movement import TO_CHANNELS_FIRST, TO_CHANNELS_LAST, Transpose
from micronpu.partition.device import CompiledPartition, Intermediates, RefusedPartitionError, graph_for_npu
from micronpu.partition.partition import COMPUTES, COMPUTES_SENTENCE
from micronpu.passes.pipeline import DEFAULT, Pipeline
from micronpu.report.verdict import Reason
from micronpu.targets.neutron.converter import NeutronConverter
from micronpu.targets.neutron.costs import costs_of, neutron_policy
from micronpu.targets.neutron.options import NeutronOptions
from micronpu.targets.neutron.sdk import SUFFIX, select_converter, selection_of_model


@dataclass(frozen=True, kw_only=True)
class NeutronPartition(CompiledPartition):
    """A partition for Neutron after compilation; LiteRT operators are the identifiers of the debug handles."""

    litert: WrittenModel
    artifacts: Artifacts

    def firmware_files(self) -> Mapping[str, str]:
        """The C file that selects the partition's kernels."""
        return {f"{self.name}{SUFFIX}": self.artifacts.kernel_selection or selection_of_model(self.litert.data)}


def compile_graph(graph: Graph, options: NeutronOptions, converter: NeutronConverter | None = None) -> NeutronPartition:
    """Legalize and write an imported graph that is fully delegated; it is changed in place."""
    before = graph.clone()
    return write_partition(
        convert_partition(graph_for_npu(graph, neutron_policy(options)), options, converter, before), options
    )


@dataclass(frozen=True)
class Converted:
    """A converted partition: the name of its first operator, the graph as written, the converter's input and output,
    and its name."""

    name: str
    graph: Graph
    litert: WrittenModel
    artifacts: Artifacts
    converter: str


def convert_partition(
    graph: Graph,
    options: NeutronOptions,
    converter: NeutronConverter | None = None,
    before: Graph | None = None,
    pipeline: Pipeline = DEFAULT,
) -> Converted:
    """Emit a copy of a partition's graph and convert it.

    Args:
        converter: default: selected by the options.
        before: the graph before the passes, for the intermediate files.
        pipeline: the passes.

    Raises:
        RefusedPartitionError: the converter finds nothing to compute.
        ConverterError: the converter is missing or fails; see `micronpu.targets.neutron.sdk`.
        FileError: an intermediate file cannot be written.
    """
    graph = graph.clone()
    name = (before or graph).first_operator()
    sources = {n: node.origin.source for node in (before or graph).nodes for n in node.origin.nodes}
    files = Intermediates(options.intermediates_dir, name)
    files.write_passes(before or graph, options.passes_of(pipeline))
    if not options.use_neutron_for_format_conversion:
        take_boundary_transposes(graph)
        graph.rename()
    files.write("graph_after.txt", lambda: f"{graph}\n")
    litert = to_litert(graph)
    files.write("model.tflite", lambda: litert.data)
    chosen = converter or select_converter(options.converter, options.target_spec)
    try:
        with timing.part("converter"):
            artifacts = chosen.convert(litert.data, options.converter_options)
    except ConverterError as error:
        last_words = f"{error.log or error}\n"
        files.write("converter.log", lambda: last_words)
        if not isinstance(error, NothingLeftError):
            raise
        why = "the converter found nothing to compute in the partition"
        reasons = {n: Reason(COMPUTES, COMPUTES_SENTENCE, why, n, source) for n, source in sources.items()}
        raise RefusedPartitionError(error.what, reasons) from error
    return Converted(name, graph, litert, artifacts, chosen.name)


def write_partition(converted: Converted, options: NeutronOptions) -> NeutronPartition:
    """Pack the converter's output for a partition."""
    name, graph, litert, artifacts = converted.name, converted.graph, converted.litert, converted.artifacts
    files = Intermediates(options.intermediates_dir, name)
    payload = pack(layout_of(graph, artifacts), artifacts)
    files.write("payload.bin", lambda: payload)
    files.write("converter.log", lambda: artifacts.log)
    files.write("report.json", lambda: describe(converted.converter, artifacts, options, len(payload)))
    made = NeutronPartition(
        data=payload,
        graph=graph,
        debug_handles=_handles(graph, litert, artifacts),
        name=name,
        litert=litert,
        artifacts=artifacts,
        costs=costs_of(graph, options.target_spec.npu),
    )
    if options.dump_kernel_selection_code:
        for file, text in made.firmware_files().items():
            files.write_anyway(file, text)
    return made


def _handles(graph: Graph, litert: WrittenModel, artifacts: Artifacts) -> dict[int, tuple[int, ...]]:
    """ExecuTorch's debug handles by the operation number in the runtime's events.

    The host numbers LiteRT operators, a board that measures a program numbers kernels; numbers of unknown meaning have
    no handles, because a wrong source line is worse than none.
    """
    operators = [graph.nodes[n].origin.debug_handles for n in litert.nodes]
    if artifacts.kind == "reference" or artifacts.payload_version == 0:
        return dict(enumerate(operators))
    kernels = artifacts.kernel_operators or ()
    return {
        number: tuple(dict.fromkeys(handle for i in computed if i < len(operators) for handle in operators[i]))
        for number, computed in enumerate(kernels)
    }


def take_boundary_transposes(graph: Graph) -> None:
    """Move layout transposes at the inputs and outputs to the runtime, as records in the graph."""
    users = graph.users()
    for index, tensor in enumerate(graph.inputs):
        readers = users.get(tensor, [])
        taken = index in graph.channels_last_inputs or tensor in graph.outputs
        if taken or not readers or not all(_is(n, TO_CHANNELS_LAST) for n in readers):
            continue
        shape = tuple(tensor.shape[i] for i in TO_CHANNELS_LAST)
        moved = Tensor(tensor.name, tensor.type.with_shape(shape))
        graph.inputs[index] = moved
        for node in readers:
            graph.replace_uses(node.output, moved)
        graph.channels_last_inputs.add(index)
    producer = graph.producers()
    for index, tensor in enumerate(graph.outputs):
        last = producer.get(tensor)
        if last is None or index in graph.channels_last_outputs or not _is(last, TO_CHANNELS_FIRST):
            continue
        source = last.inputs[0]
        if source in producer and source not in graph.outputs:
            graph.outputs[index] = source
            graph.channels_last_outputs.add(index)
    graph.remove_dead()


def _is(node: Node, permutation: tuple[int, ...]) -> bool:
    return isinstance(node.op, Transpose) and node.op.permutation == permutation


def describe(converter: str, artifacts: Artifacts, options: NeutronOptions, payload_bytes: int) -> str:
    """Describe a converted partition as JSON."""
    report = {
        "converter": converter,
        "kind": artifacts.kind,
        "versions": dict(artifacts.versions),
        "excluded_graph_passes": list(options.excluded_graph_passes) if artifacts.kind == "silicon" else [],
        "target": options.target_spec.chip.name,
        "assumed": list(options.target_spec.npu.assumed),
        "cycles_estimated_by_converter": artifacts.cycles,
        "warnings": list(artifacts.warnings),
        "bytes": {
            "microcode": len(artifacts.microcode),
            "weights": len(artifacts.weights),
            "kernels": len(artifacts.kernels),
            "payload": payload_bytes,
        },
        "payload_version": artifacts.payload_version,
    }
    return json.dumps(report, indent=2) + "\n"
