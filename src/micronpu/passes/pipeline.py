"""The ordered list of passes between import and emission."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from micronpu.errors import InternalError
from micronpu.ir.graph import Graph
from micronpu.ir.verify import Stage, verify
from micronpu.passes.base import Pass
from micronpu.passes.cleanup import MergeReshapes, RemoveNoOps
from micronpu.passes.fusion import FoldPads, FuseActivations
from micronpu.passes.layout import FoldTransposeIntoLinear, MergeTransposes, SinkTransposes, TransposeToReshape
from micronpu.passes.legalize import SplitPads

# Run again and again until none of them changes anything.
SIMPLIFY: tuple[Pass, ...] = (
    RemoveNoOps(),
    MergeTransposes(),
    SinkTransposes(),
    FoldPads(),
    TransposeToReshape(),
    MergeReshapes(),
    FoldTransposeIntoLinear(),
    FuseActivations(),
)

# Run once, to what LiteRT can express.
LEGALIZE: tuple[Pass, ...] = (SplitPads(),)

LITERT_PASSES: tuple[Pass, ...] = (*SIMPLIFY, *LEGALIZE)

_MOST_ROUNDS = 50


def run_passes(
    graph: Graph, *, disabled: Sequence[str] = (), after: Callable[[Pass, Graph], None] | None = None
) -> Graph:
    """Simplifies and legalises a graph in place and returns it.

    Args:
        disabled: names of passes to leave out; legalisation cannot be left out.
        after: called after every pass that changed something.
    """
    for _ in range(_MOST_ROUNDS):
        changed = False
        for step in SIMPLIFY:
            if step.name not in disabled and step.run(graph):
                changed = True
                graph.remove_dead()
                if after is not None:
                    after(step, graph)
        if not changed:
            break
    else:
        raise InternalError(f"The passes still change the graph after {_MOST_ROUNDS} rounds.")
    for step in LEGALIZE:
        if step.run(graph) and after is not None:
            after(step, graph)
    graph.remove_dead()
    graph.rename()
    verify(graph, Stage.LITERT)
    return graph
