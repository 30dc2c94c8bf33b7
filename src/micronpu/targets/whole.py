"""Export a quantized network as one LiteRT model: for LiteRT Micro, Vela's command line, NXP's converter, Netron.

It uses the same graph, passes and emitter as an NPU's partition, but requires that every operator is delegated. Inputs
and outputs are the integers between the program's first quantizations and last dequantizations.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from micronpu.base.errors import OptionError, UnsupportedError
from micronpu.base.installed import VERSION
from micronpu.emit.litert import add_buffer, pack, to_litert
from micronpu.frontend.graphs import GraphModule, Node
from micronpu.frontend.importer import import_nodes
from micronpu.frontend.program import ProgramView, integers_behind, quantized_from
from micronpu.frontend.tensors import lift
from micronpu.ir.graph import Graph
from micronpu.ops.recurrent import MAX_STEPS
from micronpu.partition.decisions import Decisions
from micronpu.partition.device import CompiledPartition
from micronpu.partition.partition import Partition, Policy
from micronpu.passes import run_passes
from micronpu.passes.rewrite import Choice
from micronpu.quantize.loops import loops_of
from micronpu.report.verdict import Verdict
from micronpu.upstream.session import exclusive

SIGNATURE = "serving_default"
"""Key of the model's only signature, as in LiteRT's own converters."""
METADATA = "micronpu"
"""Name of the metadata that describes how the model was made."""


@dataclass(frozen=True)
class WholeNetwork:
    """A network between its integer inputs and outputs: the graph legalised for LiteRT, names in the program's order,
    and the model."""

    graph: Graph
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    data: bytes


@exclusive()
def whole_network(module: GraphModule) -> WholeNetwork:
    """Return one LiteRT model of a quantized module.

    A state becomes an additional last input and output, which the application has to feed back.

    Raises:
        UnsupportedError: an operator stays in float; the message names each, with its source line.
    """
    lifted = lift(module)
    looped = next((loop for _, loop in loops_of(lifted)), None)
    if looped is not None:
        raise UnsupportedError(
            "The network has a recurrent layer that is one step in a loop, which no LiteRT model for microcontrollers "
            "has.",
            hint=f"at most {MAX_STEPS} steps, or a .pte",
        )
    view = ProgramView(lifted)
    boundary = _io(view)
    order = {node: number for number, node in enumerate(view.graph.nodes)}
    distinct = list(dict.fromkeys(boundary.outputs))
    nodes = sorted(boundary.inside, key=order.__getitem__)
    names = [n for n in (node.name for node in view.inputs) if n in boundary.inputs.values()]
    sources = {name: node for node, name in boundary.inputs.items()}
    graph = import_nodes(view, nodes, [sources[name] for name in names], distinct)
    run_passes(graph)
    outputs = tuple(f"output_{i}" for i in range(len(boundary.outputs)))
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(to_litert(graph).data))
    data = described(model, names, outputs, [distinct.index(n) for n in boundary.outputs])
    return WholeNetwork(graph, tuple(names), outputs, data)


@exclusive()
def optimised_network(module: GraphModule, partitions: Sequence[CompiledPartition]) -> bytes:
    """Return the LiteRT model with a single NPU operator, which contains the stream of the program compiled from the
    module."""
    parts = [part for part in partitions if part.litert_operator]
    if not parts:
        raise OptionError(
            "The program has no part for an NPU that LiteRT Micro has an operator for, so no command stream to write.",
            hint="a target with an Ethos-U, or leave out `vela`",
        )
    view = ProgramView(lift(module))
    boundary = _io(view)
    if (
        len(parts) > 1
        or len(boundary.partitions) > 1
        or len(boundary.partitions[0].inputs) != len(parts[0].graph.inputs)
    ):
        raise UnsupportedError(
            f"The program calls the NPU {len(parts)} times, with other operators between or beside, which one operator "
            f"`{parts[0].litert_operator}` cannot do.",
            hint="`program.report`, which says why the rest is not on the NPU; the plain .tflite and "
            "Vela's own command",
        )
    (part,), (partition,) = parts, boundary.partitions
    names = [boundary.inputs[node] for node in partition.inputs]
    outputs = [f"output_{boundary.outputs.index(node)}" for node in partition.outputs]
    model, allocation = part.as_litert(
        list(zip(names, part.graph.inputs, strict=True)), list(zip(outputs, part.graph.outputs, strict=True))
    )
    labels = [f"output_{i}" for i in range(len(boundary.outputs))]
    return described(model, names, labels, [partition.outputs.index(n) for n in boundary.outputs], [allocation])


@dataclass(frozen=True)
class _IntegerIO:
    """The inside of an integer network, and its inputs and outputs: nodes of integers, inputs with the program's name.

    There are several partitions if parts of the network are independent.
    """

    partitions: tuple[Partition, ...]
    inside: frozenset[Node]
    inputs: dict[Node, str]
    outputs: tuple[Node, ...]


def _io(view: ProgramView) -> _IntegerIO:
    every = Policy(name="LiteRT", decide=lambda node: Choice((node,)), allow_no_op_partitions=True, allow_empty=True)
    partitioning = Decisions(view, every).partitioning()
    left = [v for v in partitioning.report.verdicts if not v.delegated]
    if left:
        raise UnsupportedError(
            f"The network cannot be one LiteRT model of integers: {'; '.join(map(_objection, left))}.",
            hint="quantize the operator, leave it to the application, or save a .pte, whose host part "
            "computes in float",
        )
    inside = frozenset(node for partition in partitioning.partitions for node in partition.nodes)
    read = dict.fromkeys(n for partition in partitioning.partitions for n in partition.inputs if n not in inside)
    return _IntegerIO(partitioning.partitions, inside, _inputs(view, read), tuple(_outputs(view, inside)))


def _objection(verdict: Verdict) -> str:
    where = f" ({verdict.origin.source})" if verdict.origin.source else ""
    why = "; ".join(reason.detail for reason in verdict.reasons)
    return f"`{verdict.operator}`{where}" + (f": {why.rstrip('.')}" if why else "")


def _inputs(view: ProgramView, read: Iterable[Node]) -> dict[Node, str]:
    """Name of the program's input for each integer node that is read."""
    found: dict[Node, str] = {}
    for node in read:
        source = quantized_from(node)
        if not isinstance(source, Node) or source not in view.inputs:
            raise UnsupportedError(
                f"`{node.name}` is computed in float before it is quantized, which no LiteRT model of integers does.",
                hint="save a .pte, whose host part computes in float",
            )
        if source.name in found.values():
            raise UnsupportedError(
                f"The input `{source.name}` is quantized in two ways, and a LiteRT model has one type for each input.",
                hint="`set_io` of the quantizer, which makes it one",
            )
        found[node] = source.name
    return found


def _outputs(view: ProgramView, inside: Collection[Node]) -> list[Node]:
    output: Any = view.graph.output_node()
    found = []
    for node in output.args[0]:
        integers = integers_behind(node)
        if not isinstance(integers, Node) or integers not in inside:
            name = node.name if isinstance(node, Node) else repr(node)
            raise UnsupportedError(
                f"The output `{name}` is not what a quantized operator computes.",
                hint="leave it out of the model, or save a .pte",
            )
        found.append(integers)
    return found


def described(
    model: Any,
    inputs: Sequence[str],
    outputs: Sequence[str],
    positions: Sequence[int],
    metadata: Sequence[tuple[str, bytes]] = (),
) -> bytes:
    """Return the bytes of a LiteRT model after adding names of inputs and outputs, a signature, of which each output is
    one of the model's, and metadata."""
    graph = model.subgraphs[0]
    model.description = f"micronpu {VERSION}"
    signature = schema.SignatureDefT()
    signature.signatureKey, signature.subgraphIndex = SIGNATURE, 0
    signature.inputs = [_named(graph, index, name) for index, name in zip(graph.inputs, inputs, strict=True)]
    signature.outputs = [
        _named(graph, graph.outputs[position], name) for position, name in zip(positions, outputs, strict=True)
    ]
    model.signatureDefs = [signature]
    labels = json.dumps({"micronpu": VERSION, "inputs": list(inputs), "outputs": list(outputs)}).encode()
    model.metadata = list(model.metadata or ())
    for name, content in ((METADATA, labels), *metadata):
        entry = schema.MetadataT()
        entry.name, entry.buffer = name, add_buffer(model, np.frombuffer(content, np.uint8))
        model.metadata.append(entry)
    return pack(model)


def _named(graph: Any, index: int, name: str) -> Any:
    """Name an input or output tensor, and return its entry of the signature."""
    graph.tensors[index].name = name
    entry = schema.TensorMapT()
    entry.name, entry.tensorIndex = name, int(index)
    return entry
