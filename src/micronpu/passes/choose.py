"""Search for the cheapest supported implementation of a node: the node itself, or a chain of rewrites."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from micronpu.ir.graph import Graph, Node
from micronpu.passes.rewrite import Rewrite

DEPTH = 3
"""Maximum number of nested rewrites."""

Accepts = Callable[[Node], bool]
Estimate = Callable[[Sequence[Node], Node], float | None]
"""Cost of nodes that replace another node; None if they cannot replace it."""


@dataclass(frozen=True)
class Choice:
    """An implementation of a node.

    Attributes:
        nodes: in execution order; the node itself if nothing is rewritten.
        rewrites: their names, in order of application.
        cost: of the nodes, in the unit of the estimate; 0 if nothing had to be estimated.
        offer: index of the first rewrite's offer.
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
    """Return the cheapest accepted nodes that compute the result of a node; None if there are none.

    Args:
        accepts: returns True if a node can run unchanged.
        estimate: cost of nodes.
        rewrites: candidates; on equal cost the first one wins.
        disabled: names of rewrites to skip.
        depth: maximum number of nested rewrites.
        least_gain: minimum saving, as a fraction of the cost, to replace an accepted node; None keeps such a node.
        before: see `Rewrite.offers`.
    """

    def accepted(name: str, nodes: Sequence[Node]) -> Choice | None:
        """Return a rewrite's nodes after rewriting those that cannot run; None if one of them cannot be replaced."""
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
        found = accepted(name, nodes)
        if found is not None and found.cost < least:
            best, least = replace(found, offer=index), found.cost
    return best


def rewritten(graph: Graph, decide: Callable[[Node], Choice | None]) -> bool:
    """Replace the nodes of a graph by the chosen ones; return True if anything changed."""
    nodes: list[Node] = []
    changed = False
    for node in graph.nodes:
        choice = decide(node)
        changed |= choice is not None and bool(choice.rewrites)
        nodes += choice.nodes if choice is not None else (node,)
    graph.nodes = nodes
    return changed


def no_cost(nodes: Iterable[Node], node: Node) -> float:
    """Cost function that considers all accepted nodes equal."""
    return 0.0
