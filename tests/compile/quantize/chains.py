"""Chains of operators, each reading the one before it, quantized for every family and compared with float.

What hands grids on is decided where a model is quantized, so that nothing of the families' compilers is needed to
judge it: the quantized module stands for the program, and other tests compare the two.  Each operator is exported once,
and a chain is their graphs one behind the other, which a test compares with the export of the whole.  Of a family the
quantizer sees the capabilities: for another one that agrees in all of them that it has read it would do the same.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from tests.compile.nearness import sqnr_of
from tests.support_rows import Inputs, Row
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.utils._pytree import tree_leaves

from micronpu.base.errors import MicroNpuError
from micronpu.base.quiet import quiet
from micronpu.frontend.exported import Exported, exported, inputs_not_negative
from micronpu.frontend.facts import EXPORTED, LOOPS_ALLOWED, NOT_NEGATIVE
from micronpu.ir.lowering import Capabilities
from micronpu.quantize.calibrate import quantize
from micronpu.targets.registry import device_for

TARGETS = ("imxrt700", "ethos-u55-128", "cortex-m55", "ethos-u85-256")
"""One of each family, and both kinds of Ethos-U."""
ENOUGH = 20.0
"""dB from which a chain is near enough."""
BESIDE = 3.0
"""dB by which a chain may be below the plain reference where both are far."""
WIDER = (1.0, 1.1, 1.21)
"""Steps of the plain reference, in those that are needed: what jumps from one to another is so by chance."""
ROWS = 8
"""Inputs of a chain.  They calibrate it too: what lies beyond all that calibration has seen is no matter of grids."""

Chain = tuple[str, ...]
Draw = tuple[Tensor, ...]
INPUTS = ("x", "y", "image", "volume", "positions", "equal")
_EQUALITIES = ("eq.Tensor", "ne.Tensor")


def first_of(result: Any) -> Tensor:
    """The first tensor of what an operator gives."""
    return result if isinstance(result, Tensor) else next(r for r in result if isinstance(r, Tensor))


def inputs_of(x: Tensor, y: Tensor, image: Tensor, volume: Tensor, positions: Tensor) -> Inputs:
    """What a row is called on."""
    return Inputs(x, y, x[0], y[0], image, volume, positions, x.abs() + 0.5, x.abs() + 1.5, x.clamp(-0.9, 0.9))


def as_64(made: Tensor) -> Tensor:
    """The first 64 values, or all over and over."""
    flat = made.float().reshape(-1)
    return flat[:64] if len(flat) >= 64 else flat.repeat(-(-64 // len(flat)))[:64]


def second_of(name: str, y: Tensor, equal: Tensor) -> Tensor:
    """The second operand of an operator: one with numbers of the first in it for those that look for them."""
    return equal if name in _EQUALITIES else y


def behind(flat: Tensor, y: Tensor, positions: Tensor) -> Inputs:
    """What a row is called on where it reads 64 values of another."""
    x = flat.reshape(1, 8, 8)
    image = x[:, None].expand(1, 8, 8, 8) * 1.0
    volume = flat[:36].reshape(1, 1, 1, 6, 6).expand(1, 2, 4, 6, 6) * 1.0
    return inputs_of(x, y, image, volume, positions)


def draw(generator: torch.Generator) -> Draw:
    """Values beside whole and half numbers, so that rounding moves none to the other side of what compares them.

    And so beside each other, but for a last tensor, which has numbers of the first.
    """
    shapes = ((1, 8, 8), (1, 8, 8), (1, 8, 8, 8), (1, 2, 4, 6, 6), (1, 8, 8))
    x, y, image, volume, equal = ((torch.randn(s, generator=generator) * 3).round() / 3 + 0.1 for s in shapes)
    return x, y + 1 / 6, image, volume, torch.randint(0, 5, (3, 2), generator=generator), equal


class Link(nn.Module):
    """An operator of a chain: it reads the inputs or 64 values, and gives 64 values or what it has."""

    def __init__(self, name: str, *, first: bool, last: bool) -> None:
        super().__init__()
        self.row, self.name, self.first, self.last = Row(name), name, first, last
        self.eval()

    def forward(self, *given: Tensor) -> Tensor:
        *others, equal = given
        others[1] = second_of(self.name, others[1], equal)
        made = first_of(self.row(inputs_of(*others) if self.first else behind(*others)))
        return made.float() if self.last else as_64(made)


class Whole(nn.Module):
    """A chain as a module."""

    def __init__(self, chain: Chain) -> None:
        super().__init__()
        self.links = nn.ModuleList(links_of(chain))
        self.eval()

    def forward(self, *given: Tensor) -> Tensor:
        _, y, _, _, positions, equal = given
        made: Tensor = self.links[0](*given)
        for link in list(self.links)[1:]:
            made = link(made, y, positions, equal)
        return made


def links_of(chain: Chain) -> list[Link]:
    """The operators of a chain, as modules."""
    last = len(chain) - 1
    return [Link(name, first=number == 0, last=number == last) for number, name in enumerate(chain)]


@functools.cache
def rows() -> tuple[Draw, ...]:
    """Inputs of a chain."""
    generator = torch.Generator().manual_seed(1)
    return tuple(draw(generator) for _ in range(ROWS))


# ---------------------------------------------------------------- one graph of several


@functools.cache
def _exported(name: str, first: bool, last: bool) -> GraphModule:
    x, y, _, _, positions, equal = rows()[0]
    examples = rows()[0] if first else (as_64(x), y, positions, equal)
    return exported(Link(name, first=first, last=last), examples).module


def stitched(chain: Chain) -> tuple[Exported, list[Draw]]:
    """A chain as if it were exported, and its inputs: those that it reads."""
    graph, owner = Graph(), nn.Module()
    places = [graph.placeholder(name) for name in INPUTS]
    given: tuple[Node, ...] = tuple(places)
    for number, name in enumerate(chain):
        part = _exported(name, number == 0, number == len(chain) - 1)
        made = _append(graph, owner, f"of{number}_", part, given)
        given = (made, places[1], places[4], places[5])
    graph.output((made,))
    used = [number for number, place in enumerate(places) if place.users]
    for place in places:
        if not place.users:
            graph.erase_node(place)
    module = GraphModule(owner, graph)
    EXPORTED.say(module, True)
    inputs = [tuple(row[number] for number in used) for row in rows()]
    return exported(module, inputs[0]), inputs


def _append(graph: Graph, owner: nn.Module, prefix: str, part: GraphModule, given: Sequence[Node]) -> Node:
    """Puts the nodes of a part behind a graph; the node of its result."""
    copies: dict[Node, Node] = dict(zip(part.graph.find_nodes(op="placeholder"), given, strict=True))
    for node in part.graph.nodes:
        if node.op == "placeholder":
            continue
        if node.op == "output":
            (result,) = node.args[0]
            return copies[result]
        copy_of = copies[node] = graph.node_copy(node, copies.__getitem__)
        if node.op == "get_attr":
            value: Any = functools.reduce(getattr, str(node.target).split("."), part)
            copy_of.target = prefix + str(node.target).replace(".", "_")
            if isinstance(value, Tensor):
                owner.register_buffer(copy_of.target, value.detach().clone())
            else:
                setattr(owner, copy_of.target, value)
    raise AssertionError("a graph without an output")


# ---------------------------------------------------------------- the plain reference


class Plain(Interpreter):
    """Runs an exported program; once ranges are known, with each float result rounded to 256 steps of its own."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self.ranges: dict[Node, tuple[float, float]] = {}
        self.rounds = False
        self.wider = 1.0

    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        if n.op not in ("placeholder", "call_function") or not isinstance(result, Tensor):
            return result
        if result.dtype is not torch.float32 or not result.numel():
            return result
        if not self.rounds:
            finite = result.nan_to_num(posinf=0.0, neginf=0.0)
            low, high = self.ranges.get(n, (0.0, 0.0))
            self.ranges[n] = (min(low, float(finite.min())), max(high, float(finite.max())))
            return result
        low, high = self.ranges[n]
        step = max((high - low) / 255 * self.wider, 2.0**-16)
        return (result / step).round().clamp(round(low / step), round(high / step)) * step


def results(run: Callable[..., Any], inputs: Sequence[Draw]) -> list[Tensor]:
    """Each result of several calls, as one vector."""
    with torch.no_grad():
        made = [[r.flatten() for r in tree_leaves(run(*row)) if isinstance(r, Tensor)] for row in inputs]
    return [torch.cat(each) for each in zip(*made, strict=True)]


def plain_decibels(
    module: GraphModule, seen: Sequence[Draw], inputs: Sequence[Draw], wanted: Sequence[Tensor]
) -> list[float]:
    """Of each result of the plain reference: the least of several widths of steps, each as if it were that needed.

    Args:
        seen: the inputs from which ranges are learnt.
    """
    plain, found = Plain(module), []
    results(plain.run, seen)
    plain.rounds = True
    for plain.wider in WIDER:
        coarser = 20 * math.log10(plain.wider)
        found.append(
            [decibels_of(w, made) + coarser for w, made in zip(wanted, results(plain.run, inputs), strict=True)]
        )
    return [min(each) for each in zip(*found, strict=True)]


def says_nothing(wanted: Tensor) -> bool:
    """Whether values are as good as nothing, or the same everywhere."""
    counts = wanted[wanted.isfinite()]
    return not len(counts) or not bool(counts.abs().max() > 1e-3) or bool((counts == counts[0]).all())


def decibels_of(wanted: Tensor, made: Tensor) -> float:
    """Of the values that are finite."""
    finite = wanted.isfinite() & made.isfinite()
    return sqnr_of(wanted[finite], made[finite])


# ---------------------------------------------------------------- the judgement


@dataclass(frozen=True)
class Far:
    """A chain that is far from its float model.

    Attributes:
        decibels: by target those that are far.
        plain: dB of the plain reference.
    """

    chain: Chain
    decibels: Mapping[str, float]
    plain: float

    @property
    def wrong(self) -> dict[str, float]:
        """Where int8 alone is no reason."""
        return {target: found for target, found in self.decibels.items() if found < self.plain - BESIDE}

    def __str__(self) -> str:
        word, shown = ("wrong", self.wrong) if self.wrong else ("far", self.decibels)
        each = ", ".join(f"{target} {found:.1f}" for target, found in shown.items())
        return f"{word} {' -> '.join(self.chain)}: {each} dB, plain {self.plain:.1f}"


@dataclass(frozen=True)
class Refused:
    """A chain that cannot be quantized."""

    chain: Chain
    target: str
    why: str

    def __str__(self) -> str:
        return f"refused {' -> '.join(self.chain)}: {self.target}: {self.why}"


class _Noted(Capabilities):
    """Notes which of its fields are read."""

    def __getattribute__(self, name: str) -> Any:
        if name in _FIELDS:
            self.__dict__.setdefault("noted", set()).add(name)
        return super().__getattribute__(name)


_FIELDS = frozenset(field.name for field in fields(Capabilities))


def judged(chain: Chain, targets: Sequence[str] = TARGETS) -> Far | Refused | None:
    """What is to be said of a chain: None where it is near float everywhere, or says nothing."""
    given, inputs = stitched(chain)
    wanted = results(given.module, inputs)[0]
    if says_nothing(wanted):
        return None
    found: dict[str, float] = {}
    known: list[tuple[dict[str, Any], float]] = []
    for target in targets:
        capabilities = device_for(target, None).quantizer().capabilities
        same = [made for read, made in known if all(getattr(capabilities, name) == read[name] for name in read)]
        if not same:
            try:
                made, read = quantized(given, inputs, target)
            except MicroNpuError as error:
                return Refused(chain, target, str(error))
            same = [decibels_of(wanted, made[0])]
            known.append((read, same[0]))
        found[target] = same[0]
    decibels = {target: value for target, value in found.items() if not value >= ENOUGH}
    return Far(chain, decibels, plain_decibels(given.module, inputs, inputs, [wanted])[0]) if decibels else None


def quantized(given: Exported, inputs: Sequence[Draw], target: str) -> tuple[list[Tensor], dict[str, Any]]:
    """The results of the quantized module, and what of the capabilities of the target it rests on."""
    quantizer = device_for(target, None).quantizer()
    plain = {name: getattr(quantizer.capabilities, name) for name in sorted(_FIELDS)}
    quantizer.capabilities = noted = _Noted(**plain)
    noted.__dict__["noted"] = set()
    with quiet():
        module = copy.deepcopy(given.module)
    LOOPS_ALLOWED.say(module, True)
    NOT_NEGATIVE.say(module, inputs_not_negative(given, inputs))
    made = quantize(module, [[row] for row in inputs], quantizer)
    return results(made, inputs), {name: plain[name] for name in noted.__dict__["noted"]}
