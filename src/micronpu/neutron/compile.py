"""One partition: graph to payload."""

from __future__ import annotations

from dataclasses import dataclass

from micronpu.emit.litert import LiteRtModel, to_litert
from micronpu.ir.graph import Graph, Node, Tensor
from micronpu.neutron.converter import NeutronConverter, ReferenceConverter
from micronpu.neutron.options import NeutronCompileOptions
from micronpu.neutron.payload import PayloadLayout, TensorSlot, pack
from micronpu.ops.movement import TO_CHANNELS_FIRST, TO_CHANNELS_LAST, Transpose
from micronpu.passes import run_passes


@dataclass(frozen=True)
class CompiledPartition:
    """A partition after compilation.

    Attributes:
        payload: the bytes that travel in the ``.pte``.
        graph: the legalised graph, one node per NPU operation.
        litert: the LiteRT model of it.
        debug_handles: LiteRT operator index to ExecuTorch's debug handles.
    """

    payload: bytes
    graph: Graph
    litert: LiteRtModel
    debug_handles: dict[int, tuple[int, ...]]


def compile_graph(
    graph: Graph, options: NeutronCompileOptions, converter: NeutronConverter | None = None
) -> CompiledPartition:
    """Runs passes, emission, converter and packing on an imported graph, which is changed in place."""
    run_passes(graph)
    if not options.use_neutron_for_format_conversion:
        take_border_transposes(graph)
        graph.rename()
    litert = to_litert(graph)
    artifacts = (converter or ReferenceConverter()).convert(litert.data, options.converter)
    layout = PayloadLayout(
        inputs=tuple(TensorSlot(i, i in graph.channels_last_inputs) for i in range(len(graph.inputs))),
        outputs=tuple(TensorSlot(i, i in graph.channels_last_outputs) for i in range(len(graph.outputs))),
        num_arguments=len(graph.inputs),
    )
    handles = {i: graph.nodes[n].origin.debug_handles for i, n in enumerate(litert.nodes)}
    return CompiledPartition(pack(layout, artifacts), graph, litert, handles)


def take_border_transposes(graph: Graph) -> None:
    """Removes layout transposes at the border, which the runtime does instead, and notes it in the graph."""
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
