"""The ways to compile a partition, and the one that costs the fewest cycles.

Vela's own estimate decides, as it does inside Vela.  First every kind of operator that has other forms is compiled
alone in each of them, which takes about a millisecond; then the program as it is and the program of the best forms are
compiled whole.  Forms that cost more there than they did alone are taken back.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from micronpu.emit.litert import LiteRtModel, to_litert
from micronpu.emit.tosa import TosaModel
from micronpu.errors import InternalError, UnsupportedError
from micronpu.ir.graph import Graph, Node
from micronpu.ir.verify import Stage, verify
from micronpu.ops.elementwise import Add
from micronpu.ops.movement import Reshape, Transpose
from micronpu.passes.cleanup import MergeReshapes, RemoveNoOps
from micronpu.passes.fusion import FoldPads
from micronpu.passes.legalize import CopyOutputs, SplitPads
from micronpu.targets.ethosu.forms import FORMS, Form
from micronpu.targets.ethosu.options import EthosUCompileSpec
from micronpu.targets.ethosu.vela import VelaError, VelaProgram, compile_flatbuffer

_LEAST_GAIN = 0.03
"""Part of an operator's cycles that a form must save: what is measured alone differs a little in the program."""
_MOST_CONSTANT_BYTES = 128 * 1024
"""Operators with more weights are bound by reading them, and take Vela long."""
_NEAR, _DEDICATED = "Shared_Sram", "Dedicated_Sram"
_OPTIMIZE = ("scheduler", "optimize")
_DISABLE = ("scheduler", "disable_feature")
_LIMIT = ("scheduler", "arena_size_limit")
_SMALL_NODES = 24
"""Programs of so few operators are also compiled by the strategies that rarely pay."""
_LARGE_NODES = 300
"""Programs of more operators go to Vela in one format, and in the other where Vela refuses that: on U55 its time grows
with the square of the program, and the two formats differ by what stands at the end of it."""


Emitted = LiteRtModel | TosaModel
"""A written model: its flatbuffer, and for each of its operators the index of the graph's node."""


@dataclass(frozen=True)
class Strategy:
    """A way to compile a partition.

    Attributes:
        name: what the report calls it.
        via: format that Vela is given, "litert" or "tosa".
        forms: whether operators are in the forms that cost the least.
        options: (section, key) and value of Vela's options.
    """

    name: str
    via: str = "litert"
    forms: bool = True
    options: tuple[tuple[tuple[str, str], str], ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What a strategy would cost.

    Attributes:
        strategy: which one.
        cycles: Vela's estimate, or None where Vela refuses the program.
        memory: bytes of SRAM.
        fits: whether that is within the limit.
        objection: why Vela refuses, or "".
    """

    strategy: Strategy
    cycles: int | None
    memory: int = 0
    fits: bool = True
    objection: str = ""


@dataclass(frozen=True)
class Choice:
    """The best way that was found.

    Attributes:
        graph: the legalised graph of that way.
        emitted: the flatbuffer that Vela was given.
        program: what Vela made of it.
        outcome: its cost.
        outcomes: the costs of all that were tried, the chosen one included.
        forms: name of a form to the number of operators that have it in the graph.
    """

    graph: Graph
    emitted: Emitted
    program: VelaProgram
    outcome: Outcome
    outcomes: tuple[Outcome, ...]
    forms: dict[str, int]


class MemoryLimitError(UnsupportedError):
    """No way to compile the partition needs as little memory as there is."""


Emit = Callable[[Graph], Emitted]
Names = tuple[str, ...]
_FORM_NAMES = frozenset(form.name for form in FORMS)


@dataclass(frozen=True)
class Place:
    """What around a node makes forms dearer than they are alone.

    Attributes:
        read_by_sum: an addition reads the result, which Vela does together with the node unless a reshape is between.
        shares: others read the operand too; Vela copies a tensor that is read under two shapes.
    """

    read_by_sum: bool
    shares: bool


def compiled(
    graph: Graph, emitted: Emitted, spec: EthosUCompileSpec, options: Mapping[tuple[str, str], str] | None = None
) -> VelaProgram:
    """Compiles a graph that is written already.

    Raises:
        VelaError: Vela refuses it; or its program has other inputs or outputs than the graph, which has been seen of
            reshaped outputs in TOSA (Vela 5.2).
    """
    program = compile_flatbuffer(emitted.data, spec, options)
    for what, tensors, found in (("inputs", graph.inputs, program.inputs), ("outputs", graph.outputs, program.outputs)):
        wanted = [t.type.bytes for t in tensors]
        sizes = [math.prod(border.shape) * border.element_size for border in found]
        if sizes != wanted:
            raise VelaError(f"Vela's program has {what} of {sizes} bytes instead of {wanted}.")
    return program


class Bench:
    """Cycles of operators alone, each kind compiled once; the best form of each kind, found once."""

    def __init__(self, spec: EthosUCompileSpec, emit: Emit = to_litert) -> None:
        # Where the tensors of the border live in DRAM, Vela keeps those between operators in the SRAM.
        dedicated = (spec.memory_mode or "").startswith(_DEDICATED)
        shared = _NEAR in spec.accelerator.memory_modes(spec.ini)
        self._spec = replace(spec, memory_mode=_NEAR, extra_flags=()) if dedicated and shared else spec
        self._emit = emit
        self._cycles: dict[object, int | None] = {}
        self._best: dict[object, tuple[Form, int] | None] = {}

    def cycles(self, nodes: Sequence[Node]) -> int | None:
        """Vela's estimate for some nodes as a program of their own, or None where it refuses them."""
        key = tuple(_kind(n) for n in nodes)
        if key not in self._cycles:
            try:
                emitted = self._emit(_alone(nodes))
                self._cycles[key] = compile_flatbuffer(emitted.data, self._spec).cycles
            except (UnsupportedError, InternalError):
                self._cycles[key] = None
        return self._cycles[key]

    def best(self, node: Node, before: Node | None, place: Place) -> list[Node] | None:
        """The form of a node that costs the least, or None where that is its own.

        Args:
            before: see `Form.offers`.
        """
        if sum(t.type.bytes for t in node.inputs if t.is_constant) > _MOST_CONSTANT_BYTES:
            return None
        own = [*([before] if before is not None else []), node]
        key = (tuple(_kind(n) for n in own), place)
        if key not in self._best:
            self._best[key] = self._search(node, before, own, place)
        found = self._best[key]
        return None if found is None else list(found[0].offers(node, before))[found[1]]

    def _search(self, node: Node, before: Node | None, own: list[Node], place: Place) -> tuple[Form, int] | None:
        offers = [(form, i, nodes) for form in FORMS for i, nodes in enumerate(form.offers(node, before))]
        if place.read_by_sum:
            offers = [o for o in offers if not isinstance(o[2][-1].op, Reshape)]
        plain = self.cycles(own) if offers else None
        if plain is None:
            return None
        found, least = None, plain * (1 - _LEAST_GAIN)
        for form, index, nodes in offers:
            reads_before = before is not None and nodes[0].inputs[0] is before.output
            together = [before, *nodes] if before is not None and reads_before else nodes
            cost = self.cycles(together)
            if cost is not None and place.shares and isinstance(nodes[0].op, Reshape):
                cost += self.cycles(nodes[:1]) or 0
            if cost is not None and cost < least:
                found, least = (form, index), cost
        return found


def use_best_forms(graph: Graph, bench: Bench, but: Collection[Names] = ()) -> dict[str, int]:
    """Puts the operators of a legalised graph into their best forms; returns how many are in which.

    Args:
        but: origins, as names of the program's nodes, of operators that stay as they are.
    """
    FoldPads().run(graph)
    graph.remove_dead()
    users, outputs, producers = graph.users(), set(graph.outputs), graph.producers()
    replaced: dict[Node, list[Node]] = {}
    gone: set[Node] = set()
    # From the end, so that a convolution may take the transpose before it before the transpose is looked at.
    for node in reversed(graph.nodes):
        if node in gone or len(node.outputs) != 1 or node.origin.nodes in but:
            continue
        first = producers.get(node.inputs[0]) if node.inputs else None
        alone = (
            first is not None
            and isinstance(first.op, Transpose)
            and len(users[first.output]) == 1
            and first.output not in outputs
        )
        before = first if alone else None
        place = Place(
            read_by_sum=any(isinstance(u.op, Add) for u in users.get(node.output, [])),
            shares=bool(node.inputs) and len(users[node.inputs[0]]) > 1,
        )
        nodes = bench.best(node, before, place)
        if nodes is None:
            continue
        replaced[node] = nodes
        if before is not None and nodes[0].inputs[0] is not before.output:
            gone.add(before)
    used: dict[str, int] = {}
    kept: list[Node] = []
    for node in graph.nodes:
        if node in gone:
            continue
        kept += replaced.get(node, [node])
        if node in replaced:
            name = replaced[node][0].origin.passes[-1]
            used[name] = used.get(name, 0) + 1
    graph.nodes = kept
    for step in (MergeReshapes(), RemoveNoOps(), SplitPads(), CopyOutputs()):
        step.run(graph)
        graph.remove_dead()
    graph.rename()
    verify(graph, Stage.LITERT)
    return used


def choose(
    graph: Graph,
    spec: EthosUCompileSpec,
    *,
    memory_limit: int | None = None,
    emitters: Mapping[str, Emit] | None = None,
) -> Choice:
    """Compiles a legalised graph, which stays as it is, in the ways that may pay and keeps the best.

    That is the one with the fewest cycles of those that need at most ``memory_limit`` bytes of SRAM.

    Args:
        emitters: how a graph is written for Vela, per format; those that ``spec.via`` allows are tried.

    Raises:
        VelaError: Vela refuses every way.
        MemoryLimitError: no way fits the memory.
    """
    known: Mapping[str, Emit] = emitters if emitters is not None else {"litert": to_litert}
    formats = [via for via in known if spec.via in ("auto", via)]
    if not formats:
        raise InternalError(f"Nothing writes the format {spec.via!r}.")
    graphs, used = {False: graph}, dict[str, int]()
    bench = Bench(spec, known[formats[0]])
    formed = graph.clone()
    used = use_best_forms(formed, bench)
    if used:
        graphs[True] = formed
    found: list[tuple[Outcome, Emitted, VelaProgram]] = []
    refused: list[Outcome] = []
    errors: list[VelaError] = []

    def attempt(strategy: Strategy) -> None:
        if any(strategy == outcome.strategy for outcome in (*(f[0] for f in found), *refused)):
            return
        try:
            emitted = known[strategy.via](graphs[strategy.forms])
            program = compiled(graphs[strategy.forms], emitted, spec, dict(strategy.options))
        except UnsupportedError as error:
            refused.append(Outcome(strategy, None, objection=error.what))
            errors.append(error if isinstance(error, VelaError) else VelaError(error.what))
            return
        memory = program.sram_bytes
        fits = memory_limit is None or memory <= memory_limit
        found.append((Outcome(strategy, program.cycles, memory, fits), emitted, program))

    both = [Strategy(_name(formats[0], forms), formats[0], forms) for forms in sorted(graphs, reverse=True)]
    for strategy in both:
        attempt(strategy)
    if len(found) == 2 and (worse := _worse(graphs, found)):
        refined = graph.clone()
        used_then = use_best_forms(refined, bench, worse)
        if used_then:
            earlier = found.pop(0)
            graphs[True] = refined
            attempt(both[0])
            if found[-1][1] is not earlier[1] and found[-1][2].cycles > earlier[2].cycles:
                found[-1], graphs[True] = earlier, formed
            else:
                used = used_then
    for strategy in _strategies(formats, graphs, spec, len(graph.nodes)):
        attempt(strategy)
    if memory_limit is not None and found and not any(outcome.fits for outcome, _, _ in found):
        for strategy in _smaller(formats[0], graphs, memory_limit):
            attempt(strategy)
    if not found:
        for via in formats[1:]:
            attempt(Strategy(_name(via, False), via, False))
    if not found:
        raise errors[0]
    fitting = [entry for entry in found if entry[0].fits]
    if not fitting:
        least = min(found, key=lambda entry: entry[0].memory)[0]
        raise MemoryLimitError(
            f"The program needs {least.memory:,} bytes of SRAM with the memory mode {spec.memory_mode}; there are "
            f"{memory_limit:,}.",
            hint="smaller pictures or fewer channels in the first layers, where most of it goes; a memory mode that "
            "keeps the tensors in DRAM (Dedicated_Sram, Ethos-U65 and U85); a chip with more SRAM",
        )
    outcome, emitted, program = min(fitting, key=lambda entry: (entry[2].cycles, entry[0].memory))
    outcomes = (*(entry[0] for entry in found), *refused)
    forms = used if outcome.strategy.forms else {}
    return Choice(graphs[outcome.strategy.forms], emitted, program, outcome, outcomes, forms)


def _worse(graphs: dict[bool, Graph], found: Sequence[tuple[Outcome, Emitted, VelaProgram]]) -> set[Names]:
    """Origins of operators in another form that cost more with it, the operators next to them included."""
    costs: dict[bool, Counter[Names]] = {}
    for outcome, emitted, program in found:
        forms = outcome.strategy.forms
        costs[forms] = Counter()
        for layer in program.layers:
            if 0 <= layer.source < len(emitted.nodes):
                node = graphs[forms].nodes[emitted.nodes[layer.source]]
                costs[forms][node.origin.nodes] += layer.cycles
    graph = graphs[True]
    users, producers = graph.users(), graph.producers()
    near: dict[Names, set[Names]] = {}
    for node in graph.nodes:
        if any(name in _FORM_NAMES for name in node.origin.passes):
            around = [producers[t] for t in node.inputs if t in producers]
            around += [u for t in node.outputs for u in users.get(t, [])]
            near.setdefault(node.origin.nodes, {node.origin.nodes}).update(n.origin.nodes for n in around)
    return {names for names, all_near in near.items() if sum(costs[True][n] - costs[False][n] for n in all_near) > 0}


def _strategies(
    formats: Sequence[str], graphs: dict[bool, Graph], spec: EthosUCompileSpec, size: int
) -> Iterator[Strategy]:
    """What is tried beside the first format."""
    best = max(graphs)
    for via in formats[1:] if size <= _LARGE_NODES else ():
        yield Strategy(_name(via, best), via, best)
    if size > _SMALL_NODES:
        return
    name = _name(formats[0], best)
    yield Strategy(f"{name}, optimised for size", formats[0], best, ((_OPTIMIZE, "Size"),))
    if (spec.memory_mode or "").startswith(_DEDICATED):
        for forms in sorted(graphs, reverse=True):
            option = ((_DISABLE, "Cascading"),)
            yield Strategy(f"{_name(formats[0], forms)}, without cascades", formats[0], forms, option)


def _smaller(via: str, graphs: dict[bool, Graph], limit: int) -> Iterator[Strategy]:
    """What may need less memory, at the price of cycles."""
    for forms in sorted(graphs, reverse=True):
        name = _name(via, forms)
        yield Strategy(f"{name}, within {limit:,} bytes", via, forms, ((_LIMIT, str(limit)),))
        yield Strategy(f"{name}, optimised for size", via, forms, ((_OPTIMIZE, "Size"),))


def _name(via: str, forms: bool) -> str:
    return f"{'LiteRT' if via == 'litert' else 'TOSA'}{' in other forms' if forms else ''}"


def _alone(nodes: Sequence[Node]) -> Graph:
    """The nodes as a graph of their own; what they do not compute is an input."""
    made = {t for n in nodes for t in n.outputs}
    read = [t for n in nodes for t in n.inputs]
    inputs = list(dict.fromkeys(t for t in read if t not in made and not t.is_constant))
    last = [t for t in nodes[-1].outputs]
    graph = Graph(inputs, last, [Node(n.op, list(n.inputs), list(n.outputs), n.origin) for n in nodes]).clone()
    SplitPads().run(graph)
    graph.rename()
    return graph


def _kind(node: Node) -> object:
    """What the cycles of a node depend on: everything but scales, zero points and the values of constants."""
    types = [(t.shape, t.type.dtype, t.is_constant) for t in (*node.inputs, *node.outputs)]
    return node.op, tuple(types)
