"""The one search for what computes a node: the node itself, or what rewrites make of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from micronpu.ir.graph import Graph, Node
from micronpu.passes.rewrite import Rewrite

DEPTH = 3
"""How many rewrites may work on what the one before made."""

Accepts = Callable[[Node], bool]
Estimate = Callable[[Sequence[Node], Node], float | None]
"""What some nodes cost that stand in the place of another; None where they cannot stand there."""


@dataclass(frozen=True)
class Choice:
    """What computes the result of a node.

    Attributes:
        nodes: in execution order; the node itself where nothing is rewritten.
        rewrites: their names, in the order in which they are applied.
        cost: of the nodes, in the unit of the estimate; 0 where nothing had to be estimated.
        offer: which of the first rewrite's offers it is.
    """

    nodes: tuple[Node, ...]
    rewrites: tuple[str, ...] = ()
    cost: float = 0.0
    offer: int = 0


def choose(
    node: Node,
    accepts: Accepts,
    estimate: Estimate,
    rewrites: Sequence[Rewrite],
    *,
    disabled: Collection[str] = (),
    depth: int = DEPTH,
    least_gain: float | None = None,
    before: Node | None = None,
) -> Choice | None:
    """The cheapest nodes, all of them accepted, that compute the result of a node; None where there are none.

    Args:
        accepts: whether a node can run as it is.
        estimate: what nodes cost.
        rewrites: what may be made of a node; the order decides between equals.
        disabled: names of rewrites to leave out.
        depth: how many rewrites may work on what the one before made.
        least_gain: part of its own cost that has to be saved where the node is accepted; None leaves such a node alone.
        before: see `Rewrite.offers`.
    """
    best, least = None, math.inf
    if accepts(node):
        best = Choice((node,))
        if least_gain is None:
            return best
    if depth == 0:
        return best
    offers = [
        (r.name, i, nodes) for r in rewrites if r.name not in disabled for i, nodes in enumerate(r.offers(node, before))
    ]
    if best is not None and offers:
        own = estimate((node,), node)
        if own is None:
            return best
        least = own * (1 - (least_gain or 0.0))
    for name, index, nodes in offers:
        found = _accepted(name, nodes, node, accepts, estimate, rewrites, disabled, depth)
        if found is not None and found.cost < least:
            best, least = replace(found, offer=index), found.cost
    return best


def _accepted(
    name: str,
    nodes: Sequence[Node],
    node: Node,
    accepts: Accepts,
    estimate: Estimate,
    rewrites: Sequence[Rewrite],
    disabled: Collection[str],
    depth: int,
) -> Choice | None:
    """What a rewrite made of a node, with what had to be rewritten again; None where something cannot run."""
    names, made, fitting, cost = {name: None}, list[Node](), list[Node](), 0.0
    for part in nodes:
        if accepts(part):
            made.append(part)
            fitting.append(part)
            continue
        inner = choose(part, accepts, estimate, rewrites, disabled=disabled, depth=depth - 1)
        if inner is None:
            return None
        names |= dict.fromkeys(inner.rewrites)
        made += inner.nodes
        cost += inner.cost
    own = estimate(fitting, node) if fitting else 0.0
    return None if own is None else Choice(tuple(made), tuple(names), cost + own)


def rewritten(graph: Graph, decide: Callable[[Node], Choice | None]) -> bool:
    """Puts what was chosen in the place of the nodes of a graph; returns whether anything changed."""
    nodes: list[Node] = []
    changed = False
    for node in graph.nodes:
        choice = decide(node)
        changed |= choice is not None and bool(choice.rewrites)
        nodes += choice.nodes if choice is not None else (node,)
    graph.nodes = nodes
    return changed


def no_cost(nodes: Iterable[Node], node: Node) -> float:
    """Where whatever fits is as good as anything else."""
    return 0.0
