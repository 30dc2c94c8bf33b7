"""The ordered list of passes between import and emission."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from micronpu.base.errors import InternalError, OptionError
from micronpu.ir.graph import Graph
from micronpu.ir.verify import Stage, verify
from micronpu.passes.base import Pass
from micronpu.passes.cleanup import MergeReshapes, RemoveNoOps
from micronpu.passes.fusion import ActivationBeforeConcat, FoldPads, FuseActivations
from micronpu.passes.layout import (
    FoldTransposeIntoLinear,
    GatherTransposes,
    LiftTransposes,
    MergeTransposes,
    SinkTransposes,
    TransposeToReshape,
)
from micronpu.passes.legalize import CopyOutputs, SplitPads
from micronpu.passes.reshapes import HoistTransposes, MergeSlices, SinkThroughReshapes
from micronpu.passes.windows import MergePicks, SplitAveragePools

# Run again and again until none of them changes anything.
SIMPLIFY: tuple[Pass, ...] = (
    RemoveNoOps(),
    MergeTransposes(),
    SinkTransposes(),
    SinkThroughReshapes(),
    FoldPads(),
    TransposeToReshape(),
    MergeReshapes(),
    MergeSlices(),
    MergePicks(),
    FoldTransposeIntoLinear(),
    ActivationBeforeConcat(),
    FuseActivations(),
)

# Run again and again with the passes above, but without those that sink all transposes.
SETTLE: tuple[Pass, ...] = (LiftTransposes(), GatherTransposes())

# Run once: it takes back what sinking did in vain.
FINISH: tuple[Pass, ...] = (HoistTransposes(),)

# Run once, to what LiteRT can express.
LEGALIZE: tuple[Pass, ...] = (SplitAveragePools(), SplitPads(), CopyOutputs())

LITERT_PASSES: tuple[Pass, ...] = (*SIMPLIFY, *SETTLE, *FINISH, *LEGALIZE)

# A round reaches through a whole graph; later ones only see what earlier ones uncovered.
_MOST_ROUNDS = 50


def run_passes(
    graph: Graph, *, disabled: Sequence[str] = (), after: Callable[[Pass, Graph], None] | None = None
) -> Graph:
    """Simplifies and legalises a graph in place and returns it.

    Args:
        disabled: names of passes to leave out; legalisation cannot be left out.
        after: called after every pass that changed something.

    Raises:
        OptionError: there is no such pass, or it cannot be left out.
    """
    check_disabled(disabled)
    chosen = set(switchable_passes()).difference([disabled] if isinstance(disabled, str) else disabled)
    graph.remove_dead()
    sinking = (SinkTransposes, SinkThroughReshapes)
    settling = (*SETTLE, *(step for step in SIMPLIFY if not isinstance(step, sinking)))
    for steps in (SIMPLIFY, settling):
        _until_stable(graph, [step for step in steps if step.name in chosen], after)
    for step in (*(s for s in FINISH if s.name in chosen), *LEGALIZE):
        if step.run(graph) and after is not None:
            after(step, graph)
    graph.rename()
    verify(graph, Stage.LITERT)
    return graph


def _until_stable(graph: Graph, steps: Sequence[Pass], after: Callable[[Pass, Graph], None] | None) -> None:
    for _ in range(_MOST_ROUNDS):
        changed = False
        for step in steps:
            if step.run(graph):
                changed = True
                graph.remove_dead()
                if after is not None:
                    after(step, graph)
        if not changed:
            return
    raise InternalError(f"The passes still change the graph after {_MOST_ROUNDS} rounds.")


def switchable_passes() -> tuple[str, ...]:
    """Names of the passes that may be left out."""
    return tuple(step.name for step in (*SIMPLIFY, *SETTLE, *FINISH))


def check_disabled(disabled: Sequence[str], others: Collection[str] = (), needed: Collection[str] = ()) -> None:
    """Refuses names of nothing that may be left out.

    Args:
        others: names that are allowed beside those of this module.
        needed: names of rewrites without which programs compute something else.

    Raises:
        OptionError: there is no such pass, or it cannot be left out.
    """
    left_out = {disabled} if isinstance(disabled, str) else set(disabled)
    names = switchable_passes()
    for name in sorted(left_out.difference(names, others)):
        if name in (step.name for step in LEGALIZE):
            what = f"The pass {name!r} cannot be left out, because LiteRT has no words for what it removes."
        elif name in needed:
            what = f"The rewrite {name!r} cannot be left out, because programs would compute something else without it."
        else:
            what = f"There is no pass {name!r} to leave out."
        raise OptionError(what, hint=f"one of {', '.join(dict.fromkeys((*names, *others)))}")
