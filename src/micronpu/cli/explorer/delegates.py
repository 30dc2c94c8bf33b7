"""The inside of a delegate as nodes: the operations of a command stream, or the operators of an open container."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from micronpu.base.errors import PayloadError
from micronpu.base.flatbuffer import CorruptFlatbufferError, Table, root
from micronpu.container.payload import Payload, parse
from micronpu.container.reference import read_container
from micronpu.targets.ethosu.family import EthosU
from micronpu.targets.neutron.family import Neutron
from micronpu.targets.neutron.litert_view import element_name, read_model

Source = tuple[str, int]
"""A node's identifier, and the number of its output."""
Made = list[tuple[Source, ...]]
"""For each result of a delegate, where it comes from."""
Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class GraphNode:
    """A node.

    Attributes:
        id: unique in its graph.
        label: what is drawn.
        namespace: the layers around it, outermost first, with "/" between.
        reads: where its operands come from, constants left out.
        attributes: names and texts.
        outputs: of each output, names and texts.
        subgraph: identifier of a graph that says more, or "".
        place: what computes it: "NPU", "core" and the like, or "" for what is not computed.
        partition: of an NPU.
        operator: of an operation of a command stream, number of the traced operator, or -1 where it is not known.
        tensor: name of its result in the integer graph, or "".
    """

    id: str
    label: str
    namespace: str = ""
    reads: tuple[Source, ...] = ()
    attributes: Pairs = ()
    outputs: tuple[Pairs, ...] = ()
    subgraph: str = ""
    place: str = ""
    partition: int | None = None
    operator: int = -1
    tensor: str = ""


def text_of(dtype: str, shape: Iterable[int]) -> str:
    """``int8[1, 12]``."""
    return f"{dtype}[{', '.join(map(str, shape))}]"


def delegate_nodes(
    prefix: str,
    namespace: str,
    backend: str,
    blob: bytes,
    named_data: Mapping[str, bytes],
    arguments: Sequence[Source | None],
    subgraph: str = "",
    partition: int | None = None,
) -> tuple[list[GraphNode], Made]:
    """The nodes of a delegate call, and where its results come from.

    Args:
        prefix: of the identifiers.
        namespace: of the nodes.
        named_data: what travels beside the payload.
        arguments: where the arguments of the call come from; None for what is none of the method's values yet.

    Returns:
        One node and no results where nothing can be seen of the inside: it says why.
    """
    inside = _Inside(prefix, namespace, tuple(arguments), subgraph, partition)
    try:
        if backend == EthosU.backend:
            return inside.of_stream(blob, named_data)
        if backend == Neutron.backend:
            payload = parse(blob)
            if payload.kind == "reference":
                return inside.of_container(payload)
            return inside.closed(backend, "microcode of a Neutron, which is not public")
    except (PayloadError, CorruptFlatbufferError) as error:
        return inside.closed(backend, str(error))
    return inside.closed(backend, "micronpu does not know this backend")


@dataclass(frozen=True)
class _Inside:
    prefix: str
    namespace: str
    arguments: tuple[Source | None, ...]
    subgraph: str
    partition: int | None

    def node(
        self,
        number: int,
        label: str,
        reads: Iterable[Source],
        attributes: Pairs,
        outputs: tuple[Pairs, ...],
        operator: int = -1,
        tensor: str = "",
    ) -> GraphNode:
        return GraphNode(
            f"{self.prefix}{number}",
            label,
            self.namespace,
            tuple(reads),
            attributes,
            outputs,
            self.subgraph,
            "NPU",
            self.partition,
            operator,
            tensor,
        )

    def given(self, number: int) -> tuple[Source, ...]:
        """Where an argument comes from."""
        found = self.arguments[number] if 0 <= number < len(self.arguments) else None
        return (found,) if found is not None else ()

    def closed(self, backend: str, why: str) -> tuple[list[GraphNode], Made]:
        reads = [source for source in self.arguments if source is not None]
        return [self.node(0, backend, reads, (("inside", f"not shown: {why}"),), ())], []

    def of_stream(self, blob: bytes, named_data: Mapping[str, bytes]) -> tuple[list[GraphNode], Made]:
        from micronpu.targets.ethosu.host.disassembly import disassemble
        from micronpu.targets.ethosu.stream.trace import trace_of

        trace = trace_of(blob, named_data)
        stream = disassemble(blob, trace)

        def sources(after: Iterable[int]) -> tuple[Source, ...]:
            return tuple(s for i in after for s in ((self._id(i), 0),) if i >= 0) + tuple(
                s for i in after if i < 0 for s in self.given(-1 - i)
            )

        nodes = []
        for step in stream.steps:
            attributes: list[tuple[str, str]] = [("operator of the model", step.operator)] if step.operator else []
            attributes += [("reads", text) for text in step.reads]
            attributes += [(f"bytes moved, {region}", f"{count:,}") for region, count in sorted(step.moved.items())]
            attributes.append(("multiplications and bytes read", f"{step.work:,}"))
            operator = trace.sources[step.index] if trace is not None and step.index < len(trace.sources) else -1
            # A transfer is no operator of its own: what it brings is of the one behind it.
            operator = operator if step.name != "transfer" else -1
            nodes.append(
                self.node(
                    step.index,
                    step.name,
                    sources(step.after),
                    tuple(attributes),
                    ((("writes", step.writes),),),
                    operator,
                )
            )
        if not nodes:
            return self.closed(EthosU.backend, stream.stopped or "the command stream has no operation")
        if stream.stopped:
            nodes[-1] = self.node(
                len(nodes) - 1, nodes[-1].label, nodes[-1].reads, (("simulator", stream.stopped),), nodes[-1].outputs
            )
            return nodes, []
        return nodes, [sources(after) for after in stream.results]

    def _id(self, number: int) -> str:
        return f"{self.prefix}{number}"

    def of_container(self, payload: Payload) -> tuple[list[GraphNode], Made]:
        model = read_container(payload.microcode, payload.weights).model
        layout = payload.layout
        graph = _litert(model) if model[4:8] == b"TFL3" else _tosa(model)
        made: dict[str, tuple[Source, ...]] = {
            name: self.given(slot.index) for name, slot in zip(graph.inputs, layout.inputs, strict=False)
        }
        nodes = []
        for number, operator in enumerate(graph.operators):
            reads = [source for name in operator.reads for source in made.get(name, ())]
            constants = tuple(
                (f"constant {name}", graph.tensors.get(name, ""))
                for name in operator.reads
                if name not in made and name
            )
            outputs = tuple((("name", name), ("type", graph.tensors.get(name, ""))) for name in operator.makes)
            result = operator.makes[0] if operator.makes else ""
            nodes.append(self.node(number, operator.name, reads, constants, outputs, tensor=result))
            for output, name in enumerate(operator.makes):
                made[name] = ((self._id(number), output),)
        results: Made = [()] * len(layout.outputs)
        for name, slot in zip(graph.outputs, layout.outputs, strict=False):
            results[slot.index] = made.get(name, ())
        return (nodes, results) if nodes else self.closed("open container", "it has no operators")


@dataclass(frozen=True)
class _Operator:
    name: str
    reads: tuple[str, ...]
    makes: tuple[str, ...]


@dataclass(frozen=True)
class _Integers:
    """A LiteRT or TOSA graph: `tensors` says type and shape by name; constants are what nothing makes."""

    tensors: Mapping[str, str]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    operators: tuple[_Operator, ...]


def _litert(data: bytes) -> _Integers:
    model = read_model(data)
    # Names say more than numbers, but only micronpu's own are sure to be unique.
    own = [t.name for t in model.tensors]
    names = [n if own.count(n) == 1 else f"{n}#{i}" for i, n in enumerate(own)] if len(set(own)) < len(own) else own
    tensors = {}
    for name, tensor in zip(names, model.tensors, strict=True):
        grid = f", scale {tensor.scale[0]:.6g}, zero point {tensor.zero_point[0]}" if tensor.scale else ""
        tensors[name] = text_of(element_name(tensor.type), tensor.shape) + grid

    def of(indices: Iterable[int]) -> tuple[str, ...]:
        return tuple(names[i] for i in indices if i >= 0)

    operators = tuple(_Operator(o.name, of(o.inputs), of(o.outputs)) for o in model.operators)
    return _Integers(tensors, of(model.inputs), of(model.outputs), operators)


def _tosa(data: bytes) -> _Integers:
    from tosa.DType import DType
    from tosa.Op import Op

    # TosaGraph.regions 1; TosaRegion.blocks 1; TosaBasicBlock: operators 1, tensors 2, inputs 3, outputs 4;
    # TosaTensor: name 0, shape 1, type 2; TosaOperator: op 0, inputs 3, outputs 4.
    types = {v: k.lower() for k, v in vars(DType).items() if isinstance(v, int)}
    names = {v: k for k, v in vars(Op).items() if isinstance(v, int)}

    def operator(table: Table) -> _Operator:
        number = table.integer(0, "<I")
        name = names.get(number, f"operator {number}")
        return _Operator(name, tuple(table.vector(3).strings()), tuple(table.vector(4).strings()))

    block = root(memoryview(data), b"TOSA").vector(1).table(0).vector(1).table(0)
    tensors = {
        t.string(0): text_of(types.get(t.integer(2, "<I"), "?"), t.vector(1).integers())
        for t in block.vector(2).tables()
    }
    # Constants are operators of this format; what reads one names it as it does in the other.
    every = [operator(table) for table in block.vector(1).tables()]
    operators = tuple(o for o in every if not o.name.startswith("CONST"))
    return _Integers(tensors, tuple(block.vector(3).strings()), tuple(block.vector(4).strings()), operators)
