"""The inside of a delegate as nodes: the operations of a command stream, or the operators of an open container."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from micronpu.base.errors import PayloadError
from micronpu.report.inside import Inside, Pairs
from micronpu.targets.registry import family_with

Source = tuple[str, int]
"""A node's identifier, and the number of its output."""
Made = list[tuple[Source, ...]]
"""For each result of a delegate, where it comes from."""


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

    def look() -> Inside:
        family = family_with(backend)
        if family is None:
            raise PayloadError("micronpu does not know this backend")
        return family.view(blob, named_data)

    return inside_nodes(prefix, namespace, backend, look, arguments, subgraph, partition)


def inside_nodes(
    prefix: str,
    namespace: str,
    title: str,
    look: Callable[[], Inside],
    arguments: Sequence[Source | None],
    subgraph: str = "",
    partition: int | None = None,
) -> tuple[list[GraphNode], Made]:
    """As `delegate_nodes`, of what ``look`` finds; ``title`` is the label where it finds nothing."""

    def given(number: int) -> tuple[Source, ...]:
        """Where an argument comes from."""
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
