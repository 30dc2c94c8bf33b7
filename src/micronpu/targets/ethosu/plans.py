"""Plans to compile a partition, and the search for the one with the fewest cycles.

Vela's own estimate decides, as it does inside Vela. First every kind of operator that can be rewritten is compiled
alone in each form, which takes about a millisecond; then the original program and the one with the best rewrites are
compiled. Rewrites that cost more there than they did alone are undone.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

from micronpu.base.errors import InternalError, UnsupportedError
from micronpu.base.memory import release
from micronpu.emit.litert import to_litert
from micronpu.emit.written import WrittenModel
from micronpu.ir.graph import Graph, Node, Stage, verify
from micronpu.ir.op import Rescaling
from micronpu.ir.pattern import is_two_in_four
from micronpu.ir.types import DType
from micronpu.ops.elementwise import Add, Elementwise
from micronpu.ops.movement import Reshape, Transpose
from micronpu.passes.fusion import FoldPads, MergeReshapes, RemoveNoOps
from micronpu.passes.legalize import CopyOutputs, SplitPads
from micronpu.passes.rewrite import choose
from micronpu.targets.ethosu.host.prove import StreamDiffersError, checked
from micronpu.targets.ethosu.legalize import Emit, copy_returned, emitters_of
from micronpu.targets.ethosu.options import EthosUOptions
from micronpu.targets.ethosu.rewrites import TO_COST_LESS
from micronpu.targets.ethosu.rewrites.cheaper import RowsOfBytes
from micronpu.targets.ethosu.schedule.prefetch import PrefetchResult
from micronpu.targets.ethosu.vela.compiler import VelaError, VelaProgram, compile_flatbuffer

if TYPE_CHECKING:
    from micronpu.targets.ethosu.faster import ScheduleCandidate
    from micronpu.targets.ethosu.host.proof import StreamRun

_LEAST_GAIN = 0.03
"""Minimum fraction of an operator's cycles that a rewrite must save, because costs in the program differ from costs
alone."""
_MOST_CONSTANT_BYTES = 128 * 1024
"""Operators with more bytes of weights are bound by reading them, except for few int16 pixels, and slow to compile."""
_NEAR, _DEDICATED = "Shared_Sram", "Dedicated_Sram"
_OPTIMIZE = ("scheduler", "optimize")
_DISABLE = ("scheduler", "disable_feature")
_LIMIT = ("scheduler", "arena_size_limit")
UNCHAINED = ((_DISABLE, "Grouping"),)
"""Vela options to disable chains of operations. U85 has memory for one int16 table, but Vela chains operations with
two: a sum of tables that another table reads, such as (x ** 0.5) ** 2, is then wrong."""
_SMALL_NODES = 24
"""Maximum number of operators of programs that are also compiled with rarely useful plans."""
_LARGE_NODES = 300
"""Number of operators above which the second format is tried only if Vela refuses the first: on U55 its time grows with
the square of the program, and the formats differ only near the program's end."""


@dataclass(frozen=True)
class VelaPlan:
    """One set of Vela options and its estimated cost.

    Attributes:
        name: in reports.
        format: of Vela's input, "litert" or "tosa".
        rewrites: True if operators are replaced by cost-saving rewrites.
        options: (section, key) and value of Vela's options.
        cycles: Vela's estimate, or None if Vela refuses the program or has not compiled it.
        memory: bytes of SRAM.
        fits: True if the memory is within the limit.
        objection: reason why Vela refuses, or "".
    """

    name: str
    format: str = "litert"
    rewrites: bool = True
    options: tuple[tuple[tuple[str, str], str], ...] = ()
    cycles: int | None = field(default=None, compare=False)
    memory: int = field(default=0, compare=False)
    fits: bool = field(default=True, compare=False)
    objection: str = field(default="", compare=False)


@dataclass(frozen=True)
class Searched:
    """Result of the search for a faster program.

    Attributes:
        tried: number of known variants, including those of earlier searches.
        variants: number of all variants.
        seconds: wall time.
        before, cycles: of the default program, and of the best one found.
        variant: description of the best variant, or "" if the default is the best.
        ended: reason why some variants were not tried, or "".
    """

    tried: int
    variants: int
    seconds: float
    before: int
    cycles: int
    variant: str = ""
    ended: str = ""


@dataclass(frozen=True)
class Planned:
    """The best plan found, with its program.

    Attributes:
        graph: the legalised graph of that plan.
        emitted: Vela's input.
        program: Vela's result.
        plan: the chosen one.
        plans: all that were tried, including the chosen one.
        rewrites: number of operators in the graph by name of the rewrite.
        unproved: reason why the stream could not be verified; "" if it was, or if verification is disabled.
        waiting: number of operations that Vela starts too early, and that were made to wait.
        offers: choices of `use_cheapest` for the graph, in its order; empty if the graph is unchanged.
        prefetch: result of prefetching weights, or None if nothing was prefetched.
        searched: result of the search for a faster program, or None if it was not requested.
        ran: see `Checked`.
    """

    graph: Graph
    emitted: WrittenModel
    program: VelaProgram
    plan: VelaPlan
    plans: tuple[VelaPlan, ...]
    rewrites: dict[str, int]
    unproved: str = ""
    waiting: int = 0
    offers: Sequence[Offer | None] = ()
    prefetch: PrefetchResult | None = None
    searched: Searched | None = None
    ran: StreamRun | None = None

    def scheduled(self, made: ScheduleCandidate, spec: EthosUOptions) -> Planned:
        """Return the plan with another schedule of its program, if that is verified; else with the objection."""
        program, prefetch = made.proved(spec)
        unproved = self.unproved or (prefetch.unproved if spec.verify_streams else "")
        return replace(self, program=program, prefetch=prefetch, unproved=unproved)


class BoundaryError(VelaError):
    """Vela's program has other inputs or outputs than the graph."""


class MemoryLimitError(UnsupportedError):
    """Every plan for the partition needs more memory than available."""


Offer = tuple[str, int]
"""Name of a cost-saving rewrite, and index of its offer."""
Names = tuple[str, ...]
_NAMES = frozenset(rewrite.name for rewrite in TO_COST_LESS)


@dataclass(frozen=True)
class NodeContext:
    """Context of a node that makes rewrites more expensive than they are alone.

    Attributes:
        read_by_sum: an addition reads the result; Vela fuses it with the node, at no cost, unless a reshape is between.
        shares: other nodes read the operand too; Vela copies a tensor that is read with two shapes.
    """

    read_by_sum: bool
    shares: bool


def compiled(
    graph: Graph, emitted: WrittenModel, spec: EthosUOptions, options: Mapping[tuple[str, str], str] | None = None
) -> VelaProgram:
    """Compile a written graph.

    Raises:
        VelaError: Vela refuses it.
        BoundaryError: its program has other inputs or outputs than the graph; seen for reshaped outputs in TOSA, and
            for outputs that a transpose reads (Vela 5.2).
    """
    wide = [n for n in graph.nodes if isinstance(n.op, Elementwise) and n.inputs[0].type.dtype is DType.INT16]
    if not spec.verify_streams and spec.accelerator.family == "u85" and len(wide) > 1:  # each may become a table
        options = {**dict(UNCHAINED), **(options or {})}  # without verification a wrong stream would go unnoticed
    program = compile_flatbuffer(emitted.data, spec, options)
    for what, tensors, found in (("inputs", graph.inputs, program.inputs), ("outputs", graph.outputs, program.outputs)):
        wanted = [t.type.bytes for t in tensors]
        sizes = [tensor.bytes for tensor in found]
        if sizes != wanted:
            raise BoundaryError(f"Vela's program has {what} of {sizes} bytes instead of {wanted}.")
    return program


class Chooser(Protocol):
    """Selects the cheapest rewrite of an operator."""

    def best(self, node: Node, before: Node | None, place: NodeContext) -> Offer | None:
        """Return the cheapest replacement of a node, or None if that is the node itself; see `Rewrite.offers`."""
        ...


class Bench:
    """Measures the cycles of single operators, once for each kind, and caches the cheapest rewrite of each kind."""

    def __init__(self, spec: EthosUOptions, emit: Emit = to_litert) -> None:
        # In Dedicated_Sram modes, Vela keeps tensors between operators in SRAM, and inputs and outputs in DRAM.
        dedicated = (spec.memory_mode or "").startswith(_DEDICATED)
        shared = _NEAR in spec.accelerator.memory_modes(spec.ini)
        self._spec = replace(spec, memory_mode=_NEAR, extra_flags=()) if dedicated and shared else spec
        self._emit = emit
        self._cycles: dict[object, int | None] = {}
        self._best: dict[object, Offer | None] = {}

    def cycles(self, nodes: Sequence[Node]) -> int | None:
        """Vela's estimate for some nodes as a standalone program, or None if it refuses them."""
        key = tuple(_kind(n) for n in nodes)
        if key not in self._cycles:
            try:
                emitted = self._emit(_alone(nodes))
                self._cycles[key] = compile_flatbuffer(emitted.data, self._spec).cycles
            except (UnsupportedError, InternalError):
                self._cycles[key] = None
        return self._cycles[key]

    def best(self, node: Node, before: Node | None, place: NodeContext) -> Offer | None:
        """See `Chooser`."""
        is_large = sum(t.type.bytes for t in node.inputs if t.is_constant) > _MOST_CONSTANT_BYTES
        if is_large and RowsOfBytes().apply(node) is None:
            return None
        own = [*([before] if before is not None else []), node]
        key = (tuple(_kind(n) for n in own), place)
        if key not in self._best:
            self._best[key] = self._search(node, before, place)
        return self._best[key]

    def _search(self, node: Node, before: Node | None, place: NodeContext) -> Offer | None:
        def estimate(nodes: Sequence[Node], instead: Node) -> int | None:
            reads_before = before is not None and nodes[0].inputs[0] is before.output
            cost = self.cycles([before, *nodes] if before is not None and reads_before else nodes)
            if cost is not None and nodes[-1] is not node and place.shares and isinstance(nodes[0].op, Reshape):
                cost += self.cycles(nodes[:1]) or 0
            if cost is not None and nodes[-1] is not node and place.read_by_sum and isinstance(nodes[-1].op, Reshape):
                y = node.output
                own = self.cycles([Node.of(Add(), [y, y], node.origin, y.type.qparams)])
                cost = None if own is None else cost + own
            return cost

        disabled, gain = self._spec.disabled_node_rewrites, _LEAST_GAIN
        found = choose(node, lambda n: True, estimate, TO_COST_LESS, disabled=disabled, least_gain=gain, before=before)
        return (found.rewrites[0], found.offer) if found is not None and found.rewrites else None


class Rewritten(NamedTuple):
    """Result of `use_cheapest`.

    `offers` has the choice for each visited operator, in the order of the visits.
    """

    used: dict[str, int]
    offers: list[Offer | None]


def use_cheapest(graph: Graph, chooser: Chooser, but: Collection[Names] = ()) -> Rewritten:
    """Replace the operators of a legalised graph, but those of some origins, by the cheapest rewrites, in place."""
    FoldPads().run(graph)
    graph.remove_dead()
    users, outputs, producers = graph.users(), set(graph.outputs), graph.producers()
    replaced: dict[Node, list[Node]] = {}
    gone: set[Node] = set()
    offers: list[Offer | None] = []
    # Backwards, so that a convolution may absorb its preceding transpose before that is visited.
    for node in reversed(graph.nodes):
        if node in gone or len(node.outputs) != 1:
            continue
        before = producers.get(node.inputs[0]) if node.inputs else None
        if before is not None:  # a transpose without another reader
            alone = len(users[before.output]) == 1 and before.output not in outputs
            before = before if alone and isinstance(before.op, Transpose) else None
        place = NodeContext(
            read_by_sum=any(isinstance(u.op, Add) for u in users.get(node.output, [])),
            shares=bool(node.inputs) and len(users[node.inputs[0]]) > 1,
        )
        offer = chooser.best(node, before, place) if node.origin.nodes not in but else None
        offers.append(offer)
        if offer is None:
            continue
        (rewrite,) = (r for r in TO_COST_LESS if r.name == offer[0])
        nodes = replaced[node] = list(rewrite.offers(node, before))[offer[1]]
        if before is not None and nodes[0].inputs[0] is not before.output:
            gone.add(before)
    used = Counter(replaced[node][0].origin.passes[-1] for node in graph.nodes if node in replaced)
    graph.nodes = [new for node in graph.nodes if node not in gone for new in replaced.get(node, [node])]
    for step in (MergeReshapes(), RemoveNoOps(), SplitPads(), CopyOutputs()):
        step.run(graph)
        graph.remove_dead()
    graph.rename()
    verify(graph, Stage.LITERT)
    return Rewritten(dict(used), offers)


def best_plan(
    graph: Graph, spec: EthosUOptions, *, memory_limit: int | None = None, emitters: Mapping[str, Emit] | None = None
) -> Planned:
    """Compile a copy of a legalised graph with all promising plans and return the best.

    The best plan has the fewest cycles of those that need at most ``memory_limit`` bytes of SRAM.

    Args:
        emitters: writers of Vela's input by format; those that ``spec.via`` allows are tried.

    Raises:
        VelaError: Vela refuses every plan.
        StreamDiffersError: the stream is wrong for every plan.
        MemoryLimitError: no plan fits the memory.
    """
    tries = _Tries(graph, spec, memory_limit, emitters_of(spec) if emitters is None else emitters)
    tries.with_and_without_rewrites()
    formats = _formats_of(tries.graphs[max(tries.graphs)], tries.formats)
    for plan in _further(formats, tries.graphs, spec, len(graph.nodes)):
        tries.attempt(plan)
    if memory_limit is not None and tries.found and not tries.fitting:
        for plan in _smaller(formats[0], tries.graphs, memory_limit):
            tries.attempt(plan)
    if not tries.found:
        for format, rewrites in itertools.product(tries.formats[1:], sorted(tries.graphs, reverse=True)):
            tries.attempt(VelaPlan(plan_name(format, rewrites), format, rewrites))
    if not tries.found and tries.loses and copy_returned(copied := graph.clone()):
        return best_plan(copied, spec, memory_limit=memory_limit, emitters=emitters)
    return tries.sound()


class _Tries:
    """Compiles a graph with several plans and records the results.

    The preferred format is first in `formats`. `graphs` are those without and with cost-saving rewrites, if any apply;
    `found` the plans that work, of which only the best one keeps its bytes; `loses` is True if a program of Vela lacked
    an input or output.
    """

    def __init__(
        self, graph: Graph, spec: EthosUOptions, memory_limit: int | None, emitters: Mapping[str, Emit]
    ) -> None:
        self._graph, self._spec, self._limit, self._emitters = graph, spec, memory_limit, emitters
        self.formats = _formats_of(graph, [f for f in emitters if spec.via in ("auto", f)])
        if not self.formats:
            raise InternalError(f"No emitter writes the format {spec.via!r}.")
        self._bench = Bench(spec, lambda graph: emitters[(_formats_of(graph, self.formats) or self.formats)[0]](graph))
        cheapest = graph.clone()
        self.rewritten = use_cheapest(cheapest, self._bench)
        self.graphs = {False: graph, True: cheapest} if self.rewritten.used else {False: graph}
        self.found: list[_PlanResult] = []
        self.refused: list[VelaPlan] = []
        self.loses = False

    @property
    def fitting(self) -> list[_PlanResult]:
        """The plans within the memory limit."""
        return [entry for entry in self.found if entry.plan.fits]

    def attempt(self, plan: VelaPlan) -> None:
        """Compile with a plan, unless that has been done."""
        if plan in (*(f.plan for f in self.found), *self.refused):
            return
        release()  # memory of writing the previous plan
        try:
            emitted, program = self._compiled(plan)
        except UnsupportedError as error:
            self.refused.append(replace(plan, objection=error.what))
            self.loses |= isinstance(error, BoundaryError)
            return
        memory = program.sram_bytes
        fits = self._limit is None or memory <= self._limit
        made = replace(plan, cycles=program.cycles, memory=memory, fits=fits)
        self.found.append(_PlanResult(made, emitted, program))
        _keep_one(self.found)

    def _compiled(self, plan: VelaPlan) -> tuple[WrittenModel, VelaProgram]:
        graph = self.graphs[plan.rewrites]
        emitted = self._emitters[plan.format](graph)
        return emitted, compiled(graph, emitted, self._spec, dict(plan.options))

    def with_and_without_rewrites(self) -> None:
        """Compile the first two plans, and undo rewrites that cost more in the program than they did alone."""
        for rewrites in sorted(self.graphs, reverse=True):
            self._usual(rewrites)
        worse = _worse(self.graphs, self.found) if len(self.found) == 2 else None
        if not worse:
            return
        refined = self._graph.clone()
        rewritten = use_cheapest(refined, self._bench, worse)
        if not rewritten.used:
            return
        cheapest, earlier = self.graphs[True], self.found.pop(0)
        self.graphs[True] = refined
        self._usual(True)
        if self.found[-1].program.cycles > earlier.program.cycles:
            self.found[-1], self.graphs[True] = earlier, cheapest
        else:
            self.rewritten = rewritten

    def _usual(self, rewrites: bool) -> None:
        format = _formats_of(self.graphs[rewrites], self.formats)[0]
        self.attempt(VelaPlan(plan_name(format, rewrites), format, rewrites))

    def sound(self) -> Planned:
        """Return the best plan with a correct stream."""
        if not self.found:
            raise VelaError(objections({plan.format: plan.objection for plan in self.refused}))
        if not self.fitting:
            raise self._too_large()
        wrong: dict[str, str] = {}
        while fitting := self.fitting:
            best = min(fitting, key=_PlanResult.cost)
            plan, emitted, program = best
            if not emitted.data:  # its bytes were dropped for a better plan, which turned out wrong
                emitted, program = self._compiled(plan)
            release()
            graph = self.graphs[plan.rewrites]
            found = checked(graph, emitted, program, self._spec)
            if not found.objection:
                plans = (*(entry.plan for entry in self.found), *self.refused)
                used, offers = self.rewritten if plan.rewrites else Rewritten({}, [])
                verified = found.unproved, found.waiting
                return Planned(graph, emitted, found.program, plan, plans, used, *verified, offers, ran=found.ran)
            wrong.setdefault(plan.format, found.objection)
            self.found.remove(best)
            self.refused.append(replace(plan, cycles=None, objection=found.objection))
            if not self.fitting:
                self._what_was_not_worth_a_try(wrong)
        raise StreamDiffersError(objections({plan.format: plan.objection for plan in self.refused} | wrong))

    def _what_was_not_worth_a_try(self, wrong: Collection[str]) -> None:
        """Try all formats, with and without rewrites; without chains of operations if a stream was wrong."""
        for rewrites, format in itertools.product(sorted(self.graphs), self.formats):
            self.attempt(VelaPlan(plan_name(format, rewrites), format, rewrites))
            if format in wrong:
                self.attempt(VelaPlan(f"{plan_name(format, rewrites)}, without chains", format, rewrites, UNCHAINED))

    def _too_large(self) -> MemoryLimitError:
        least = min((entry.plan for entry in self.found), key=lambda plan: plan.memory)
        return MemoryLimitError(
            f"The program needs {least.memory:,} bytes of SRAM with the memory mode {self._spec.memory_mode}; there "
            f"are {self._limit:,}.",
            hint="smaller pictures or fewer channels in the first layers, where most of it goes; a memory mode that "
            "keeps the tensors in DRAM (Dedicated_Sram, Ethos-U65 and U85); a chip with more SRAM",
        )


def _formats_of(graph: Graph, formats: Sequence[str]) -> list[str]:
    """The formats that can express a graph: LiteRT has no operators with two types, or with bytes of numbers."""
    in_tosa = any(isinstance(node.op, Rescaling) and node.op.dtype is not None for node in graph.nodes)
    return [f for f in formats if not (in_tosa and f == "litert")]


class _PlanResult(NamedTuple):
    plan: VelaPlan
    emitted: WrittenModel
    program: VelaProgram

    def cost(self) -> tuple[int, int]:
        """Sort key of plans, smallest is best."""
        return self.program.cycles, self.plan.memory


def _keep_one(found: list[_PlanResult]) -> None:
    """Drop the bytes of all but the best plan, which are as large as the network; keep their estimates."""
    best = min([entry for entry in found if entry.plan.fits] or found, key=_PlanResult.cost)
    for i, (_, emitted, program) in enumerate(found):
        if found[i] is not best:
            light = replace(program, commands=b"", constants=b"")
            found[i] = found[i]._replace(emitted=replace(emitted, data=b""), program=light)


def objections(by_format: Mapping[str, str]) -> str:
    """Combine the reasons why a graph cannot be compiled, by format if they differ."""
    if len(set(by_format.values())) == 1:
        return next(iter(by_format.values()))
    return " ".join(f"{plan_name(format, False)}: {text.rstrip('.')}." for format, text in by_format.items())


def _worse(graphs: dict[bool, Graph], found: Sequence[_PlanResult]) -> set[Names]:
    """Origins of rewritten operators that cost more than before, including their neighbours."""
    costs: dict[bool, Counter[Names]] = {}
    for plan, emitted, program in found:
        costs[plan.rewrites] = Counter()
        for layer in program.layers:
            if 0 <= layer.source < len(emitted.nodes):
                node = graphs[plan.rewrites].nodes[emitted.nodes[layer.source]]
                costs[plan.rewrites][node.origin.nodes] += layer.cycles
    graph = graphs[True]
    users, producers = graph.users(), graph.producers()
    near: dict[Names, set[Names]] = {}
    for node in graph.nodes:
        if any(name in _NAMES for name in node.origin.passes):
            around = [producers[t] for t in node.inputs if t in producers]
            around += [u for t in node.outputs for u in users.get(t, [])]
            near.setdefault(node.origin.nodes, {node.origin.nodes}).update(n.origin.nodes for n in around)
    return {names for names, all_near in near.items() if sum(costs[True][n] - costs[False][n] for n in all_near) > 0}


def _further(formats: Sequence[str], graphs: dict[bool, Graph], spec: EthosUOptions, size: int) -> Iterator[VelaPlan]:
    best = max(graphs)
    for format in formats[1:] if size <= _LARGE_NODES else ():
        yield VelaPlan(plan_name(format, best), format, best)
    if size > _SMALL_NODES:
        return
    name = plan_name(formats[0], best)
    yield VelaPlan(f"{name}, optimised for size", formats[0], best, ((_OPTIMIZE, "Size"),))
    if (spec.memory_mode or "").startswith(_DEDICATED):
        for rewrites in sorted(graphs, reverse=True):
            option = ((_DISABLE, "Cascading"),)
            yield VelaPlan(f"{plan_name(formats[0], rewrites)}, without cascades", formats[0], rewrites, option)


def _smaller(format: str, graphs: dict[bool, Graph], limit: int) -> Iterator[VelaPlan]:
    for rewrites in sorted(graphs, reverse=True):
        name = plan_name(format, rewrites)
        yield VelaPlan(f"{name}, within {limit:,} bytes", format, rewrites, ((_LIMIT, str(limit)),))
        yield VelaPlan(f"{name}, optimised for size", format, rewrites, ((_OPTIMIZE, "Size"),))


def plan_name(format: str, rewrites: bool) -> str:
    return f"{'LiteRT' if format == 'litert' else 'TOSA'}{' with rewrites' if rewrites else ''}"


def _alone(nodes: Sequence[Node]) -> Graph:
    """Return the nodes as a separate graph; values that they do not compute become inputs."""
    made = {t for n in nodes for t in n.outputs}
    inputs = list(dict.fromkeys(t for n in nodes for t in n.inputs if t not in made and not t.is_constant))
    copies = [Node(n.op, list(n.inputs), list(n.outputs), n.origin) for n in nodes]
    graph = Graph(inputs, list(nodes[-1].outputs), copies).clone()
    SplitPads().run(graph)
    graph.rename()
    return graph


def _kind(node: Node) -> object:
    """Key of a node's cycles: everything except scales, zero points and the values of constants.

    For values, only 2:4 sparsity matters (a rewrite that spreads sparse weights may cost what it saves), and their sum.
    """
    types = [
        (t.shape, t.type.dtype, t.is_constant, t.data is not None and is_two_in_four(t.data))
        for t in (*node.inputs, *node.outputs)
    ]
    return node.op, tuple(types), RowsOfBytes().apply(node) is not None
