"""The ordered list of passes between import and emission."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from micronpu.base import timing
from micronpu.base.arguments import check_switch, described
from micronpu.base.errors import ErrorsAs, InternalError, OptionError, PassError, first_line, one_of
from micronpu.base.extensions import PASSES, extensions, load
from micronpu.ir.graph import Graph, Stage, verify
from micronpu.ir.interpreter import interpret
from micronpu.ir.types import DType
from micronpu.passes import layout
from micronpu.passes.base import Pass
from micronpu.passes.fusion import ActivationBeforeConcat, FoldPads, FuseActivations, MergeReshapes, RemoveNoOps
from micronpu.passes.legalize import CopyOutputs, MergePicks, SplitAveragePools, SplitPads

# Repeated until none of them changes anything.
SIMPLIFY: tuple[Pass, ...] = (
    RemoveNoOps(),
    layout.MergeTransposes(),
    layout.SinkTransposes(),
    layout.SinkThroughReshapes(),
    FoldPads(),
    layout.TransposeToReshape(),
    MergeReshapes(),
    layout.MergeSlices(),
    MergePicks(),
    layout.FoldTransposeIntoLinear(),
    ActivationBeforeConcat(),
    FuseActivations(),
)

# Repeated with the passes above, except those that sink all transposes.
SETTLE: tuple[Pass, ...] = (layout.LiftTransposes(), layout.GatherTransposes())

# Run once: undoes useless sinking.
FINISH: tuple[Pass, ...] = (layout.HoistTransposes(),)

# Run once, for LiteRT.
LEGALIZE: tuple[Pass, ...] = (SplitAveragePools(), SplitPads(), CopyOutputs())

LITERT_PASSES: tuple[Pass, ...] = (*SIMPLIFY, *SETTLE, *FINISH, *LEGALIZE)

# A round reaches the whole graph; later rounds only handle consequences of earlier ones.
_MOST_ROUNDS = 50
_SEED = 0


@dataclass(frozen=True)
class Phase:
    """Passes that run in sequence."""

    name: str  # for people
    passes: tuple[Pass, ...]  # in order
    repeated: bool = False  # until none of them changes anything; else once


_SINKING = (layout.SinkTransposes, layout.SinkThroughReshapes)

PHASES = (
    Phase("simplify", SIMPLIFY, repeated=True),
    Phase("settle", (*SETTLE, *(step for step in SIMPLIFY if not isinstance(step, _SINKING))), repeated=True),
    Phase("finish", FINISH),
    Phase("legalize", LEGALIZE),
)


def _installed(name: str) -> Pass:
    """Return a new pass of an installed package, by the name of its entry point; else raise `OptionError`."""
    point = extensions(PASSES).get(name)
    if point is None:
        known = ", ".join(extensions(PASSES)) or "none is installed"
        raise OptionError(f"No installed package has a pass {name!r}.", hint=f"an instance of Pass, or one of: {known}")
    found: Pass = load(point, Pass, "class derived from micronpu.Pass")()
    return found


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """The ordered passes applied to every graph before it is written.

        pipeline = Pipeline().without("fuse_activations").before("merge_reshapes", MyPass())
        print(pipeline)
        program = micronpu.compile(..., transforms=Transforms(passes=pipeline))

    Immutable: each method returns a new pipeline.

    Attributes:
        phases: passes that run together.
        verify_each: check the graph after every pass, and compare its results before and after each user-defined
            pass on random inputs, in NumPy, which takes minutes for a large network. Without it graphs are checked
            after user-defined passes, and at the end.
    """

    phases: tuple[Phase, ...] = PHASES
    verify_each: bool = False

    def __post_init__(self) -> None:
        check_switch("verify_each", self.verify_each)
        if not isinstance(self.phases, tuple) or not all(isinstance(phase, Phase) for phase in self.phases):
            what = f"`phases` is {described(self.phases)}; it is a tuple of phases."
            raise OptionError(what, hint='Pipeline().without("...")')

    def __iter__(self) -> Iterator[Pass]:
        return iter(dict.fromkeys(step for phase in self.phases for step in phase.passes))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the passes, in order of their first run."""
        return tuple(step.name for step in self)

    def __str__(self) -> str:
        lines = []
        for phase in self.phases:
            lines.append(f"{phase.name}{', until nothing changes' if phase.repeated else ''}:")
            lines += [f"  {step.name}{'' if step in LITERT_PASSES else '  (your own)'}" for step in phase.passes]
        return "\n".join(lines)

    def without(self, *names: str) -> Pipeline:
        """Return the pipeline without some passes.

        Raises:
            OptionError: it has no such pass, or the pass is required.
        """
        check_disabled(names, [step.name for step in self if step not in LITERT_PASSES])
        for name in names:
            self._check_has(name)
        return self._changed(lambda step: [] if step.name in names else [step])

    def before(self, name: str, *passes: Pass | str) -> Pipeline:
        """Insert passes right before another one, at each of its positions.

        Args:
            passes: user-defined, or the names of passes of installed packages; their names must be unique.

        Raises:
            OptionError: there is no such pass, or a new pass is invalid.
        """
        self._check_has(name)
        own = self._own(passes)
        return self._changed(lambda step: [*own, step] if step.name == name else [step])

    def after(self, name: str, *passes: Pass | str) -> Pipeline:
        """Insert passes right after another one, at each of its positions; see `before`."""
        self._check_has(name)
        own = self._own(passes)
        return self._changed(lambda step: [step, *own] if step.name == name else [step])

    def _changed(self, change: Callable[[Pass], list[Pass]]) -> Pipeline:
        phases = (replace(p, passes=tuple(s for step in p.passes for s in change(step))) for p in self.phases)
        return replace(self, phases=tuple(phases))

    def _check_has(self, name: str) -> None:
        if name not in self.names:
            hint = one_of(self.names, str(name), "`micronpu passes`")
            raise OptionError(f"The pipeline has no pass {described(name)}.", hint=hint)

    def _own(self, passes: Sequence[Pass | str]) -> tuple[Pass, ...]:
        """User-defined passes after loading those of other packages, checked."""
        made = tuple(_installed(step) if isinstance(step, str) else step for step in passes)
        taken = {*self.names, *(step.name for step in LITERT_PASSES)}
        for step in made:
            if not isinstance(step, Pass):
                raise OptionError(f"A pass is {described(step)}.", hint="MyPass(), of a class derived from Pass")
            name = getattr(step, "name", None)
            if not isinstance(name, str) or not name.isidentifier() or name in taken:
                why = "which another pass has" if name in taken else "which is no name"
                what = f"The pass {type(step).__name__} is called {described(name)}, {why}."
                raise OptionError(what, hint='name = "my_pass"')
            taken.add(name)
        return made

    def run(self, graph: Graph, after: Callable[[Pass, Graph], None] | None = None) -> Graph:
        """Simplify and legalise a graph in place and return it.

        Args:
            after: called after every pass that changed something.

        Raises:
            PassError: a user-defined pass breaks the graph; the message names it, and the node.
        """
        graph.remove_dead()
        for phase in self.phases:
            if phase.repeated:
                self._until_stable(phase, graph, after)
                continue
            for step in phase.passes:
                if self._step(step, graph) and after is not None:
                    after(step, graph)
        graph.rename()
        own = [step.name for step in self if step not in LITERT_PASSES]
        try:
            verify(graph, Stage.LITERT)
        except InternalError as error:
            if not own:
                raise
            what = f"Behind your passes {', '.join(own)} the graph is none that can be written: {error.what}"
            raise PassError(what, hint="Pipeline(verify_each=True), or one pass less") from error
        return graph

    def trace(self, graph: Graph) -> Iterator[tuple[str, str]]:
        """Run on a copy of a graph; yield the name of each pass that changes something, and the result as text."""
        found: list[tuple[str, str]] = []
        self.run(graph.clone(), lambda step, changed: found.append((step.name, f"{changed}\n")))
        return iter(found)

    def _until_stable(self, phase: Phase, graph: Graph, after: Callable[[Pass, Graph], None] | None) -> None:
        last = ""
        for _ in range(_MOST_ROUNDS):
            changed = False
            for step in phase.passes:
                if self._step(step, graph):
                    changed, last = True, "" if step in LITERT_PASSES else step.name
                    graph.remove_dead()
                    if after is not None:
                        after(step, graph)
            if not changed:
                return
        if last:
            what = f"The pass `{last}` still changes the graph after {_MOST_ROUNDS} rounds."
            raise PassError(what, hint="return whether anything changed, and do not undo what another pass does")
        raise InternalError(f"The passes still change the graph after {_MOST_ROUNDS} rounds.")

    def _step(self, step: Pass, graph: Graph) -> bool:
        if step in LITERT_PASSES:
            with timing.part(f"pass {step.name}"):
                changed = step.run(graph)
            if changed and self.verify_each:
                try:
                    verify(graph)
                except InternalError as error:
                    raise InternalError(f"The pass `{step.name}` breaks the graph: {error.what}") from error
            return changed
        before = graph.clone() if self.verify_each else None
        boundary = [t.type for t in (*graph.inputs, *graph.outputs)]
        with ErrorsAs(lambda error: _failed(step.name, error), PassError):  # of the user's code
            with timing.part(f"pass {step.name}"):
                changed = step.run(graph)
            graph.remove_dead()
            verify(graph)
        if not isinstance(changed, bool):
            what = f"The pass `{step.name}` returns {described(changed)}, not whether it changed anything."
            raise PassError(what, hint="return True or False")
        if [t.type for t in (*graph.inputs, *graph.outputs)] != boundary:
            what = f"The pass `{step.name}` changes the types of the graph's inputs or outputs."
            raise PassError(what, hint="keep shape, type and qparams of inputs and outputs of the graph")
        if before is not None and changed:
            _check_same(step.name, before, graph)
        return changed


def _failed(name: str, error: Exception) -> PassError:
    if isinstance(error, InternalError):
        return PassError(f"The pass `{name}` breaks the graph: {error.what}", hint="print(graph)")
    what = f"The pass `{name}` fails with {type(error).__name__}: {first_line(error)}."
    return PassError(what, hint="print(graph) at its beginning")


def _check_same(name: str, before: Graph, after: Graph) -> None:
    """Refuse a pass that changes results on random inputs."""
    random = np.random.default_rng(_SEED)
    given = []
    for tensor in before.inputs:
        low, high = (0, 1) if tensor.type.dtype is DType.BOOL else tensor.type.dtype.limits
        integers = random.integers(low, high, tensor.shape, np.int64, endpoint=True)
        given.append(integers.astype(tensor.type.dtype.numpy))
    for old, new, x, y in zip(
        before.outputs, after.outputs, interpret(before, given), interpret(after, given), strict=True
    ):
        if not np.array_equal(x, y):
            node = after.producers().get(new)
            what = f"The pass `{name}` changes what is computed: {old.name} differs in {np.sum(x != y):,} of {x.size:,}"
            raise PassError(f"{what} values, computed by `{node}`.", hint="a pass is exact")


DEFAULT = Pipeline()
"""The pipeline for every graph unless the user sets another."""


def run_passes(
    graph: Graph,
    *,
    disabled: Sequence[str] = (),
    after: Callable[[Pass, Graph], None] | None = None,
    pipeline: Pipeline = DEFAULT,
) -> Graph:
    """Simplify and legalise a graph in place and return it.

    Args:
        disabled: names of passes in the pipeline to skip; legalisation is required.
        after: called after every pass that changed something.

    Raises:
        OptionError: there is no such pass, or it is required.
        PassError: a user-defined pass breaks the graph.
    """
    names = (disabled,) if isinstance(disabled, str) else tuple(disabled)
    check_disabled(names, [step.name for step in pipeline if step not in LITERT_PASSES])
    return pipeline.without(*(name for name in names if name in pipeline.names)).run(graph, after)


def switchable_passes() -> tuple[str, ...]:
    return tuple(step.name for step in (*SIMPLIFY, *SETTLE, *FINISH))


def check_disabled(disabled: Sequence[str], others: Collection[str] = (), needed: Collection[str] = ()) -> None:
    """Refuse names that cannot be disabled.

    Args:
        others: names that are allowed besides those of this module.
        needed: names of rewrites that are required for correct results.

    Raises:
        OptionError: there is no such pass, or it is required.
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
        raise OptionError(what, hint=one_of((*names, *others), name, "`micronpu passes`"))
