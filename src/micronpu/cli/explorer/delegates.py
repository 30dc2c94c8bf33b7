"""The inside of a delegate as nodes: operations of a command stream, or operators of a container that can be read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from micronpu.base.errors import PayloadError
from micronpu.report.inside import Inside, Pairs
from micronpu.targets.registry import backend_with

Source = tuple[str, int]
"""A node's identifier, and the index of its output."""
Made = list[tuple[Source, ...]]
"""Sources of each result of a delegate."""


@dataclass(frozen=True)
class GraphNode:
    """A node.

    Attributes:
        id: unique in its graph.
        label: text on the node.
        namespace: the layers around it, outermost first, with "/" between.
        reads: sources of its operands, without constants.
        attributes: names and texts.
        outputs: names and texts of each output.
        subgraph: identifier of a graph with details, or "".
        place: "NPU", "core" and the like; "" if nothing computes it.
        partition: index of the partition on the NPU.
        operator: index of the traced operator of a stream's operation; -1 if unknown.
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


def delegate_nodes(
    prefix: str,
    namespace: str,
    backend_id: str,
    blob: bytes,
    named_data: Mapping[str, bytes],
    arguments: Sequence[Source | None],
    subgraph: str = "",
    partition: int | None = None,
) -> tuple[list[GraphNode], Made]:
    """Return the nodes of a delegate call, and the sources of its results.

    Args:
        prefix: of the identifiers.
        namespace: of the nodes.
        named_data: data stored beside the payload.
        arguments: sources of the call's arguments; None for those that no node of the method has computed.

    Returns:
        One node with the reason and no results if the payload cannot be read.
    """

    def look() -> Inside:
        backend = backend_with(backend_id)
        if backend is None:
            raise PayloadError("micronpu does not know this backend")
        return backend.view(blob, named_data)

    return inside_nodes(prefix, namespace, backend_id, look, arguments, subgraph, partition)


def inside_nodes(
    prefix: str,
    namespace: str,
    title: str,
    look: Callable[[], Inside],
    arguments: Sequence[Source | None],
    subgraph: str = "",
    partition: int | None = None,
) -> tuple[list[GraphNode], Made]:
    """Return nodes and sources as `delegate_nodes` does; ``title`` is the label if ``look`` cannot read the inside."""

    def given(number: int) -> tuple[Source, ...]:
        """Return the source of an argument."""
        found = arguments[number] if 0 <= number < len(arguments) else None
        return (found,) if found is not None else ()

    def sources(reads: Iterable[tuple[int, int]]) -> tuple[Source, ...]:
        made = tuple((f"{prefix}{i}", output) for i, output in reads if i >= 0)
        return made + tuple(s for i, _ in reads if i < 0 for s in given(-1 - i))

    def closed(why: str) -> tuple[list[GraphNode], Made]:
        reads = tuple(source for source in arguments if source is not None)
        text = (("inside", f"not shown: {why}"),)
        return [GraphNode(f"{prefix}0", title, namespace, reads, text, (), subgraph, "NPU", partition)], []

    try:
        inside = look()
    except PayloadError as error:
        return closed(str(error).rstrip("."))
    nodes = [
        GraphNode(
            f"{prefix}{number}",
            step.label,
            namespace,
            sources(step.reads),
            step.attributes,
            step.outputs,
            subgraph,
            "NPU",
            partition,
            step.operator,
            step.tensor,
        )
        for number, step in enumerate(inside.steps)
    ]
    if not nodes:
        return closed(inside.stopped or "it has no operations")
    return nodes, [sources(made) for made in inside.results]
