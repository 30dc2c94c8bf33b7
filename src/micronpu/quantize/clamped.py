"""What calibration sees of values that nothing but clamps reads: no farther than these let through.

A grid for values up to 100 of which a clamp leaves those up to 1 has two steps for these; one that ends where the clamp
does saturates the others, as the clamp would.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import torch
from torch.fx import GraphModule, Node

from micronpu.frontend.importer import NodeArguments, known_import
from micronpu.ops.clamps import clamp_bounds
from micronpu.quantize.observing import RangeObserver
from micronpu.quantize.specs import Place

Ends: TypeAlias = tuple[float, float]


def observe_clamped(model: GraphModule, places: Mapping[Place, Any]) -> None:
    """Shows observers of such values what is left of them, in place.

    Inputs of the program keep the range that they have, which is the user's.

    Args:
        places: observer by node or by (operand, reader) edge, as torchao has them while it prepares.
    """
    values: dict[Any, dict[Node, None]] = {}
    for place, observer in places.items():
        values.setdefault(observer, {})[place[0] if isinstance(place, tuple) else place] = None
    for observer, nodes in values.items():
        if not isinstance(observer, RangeObserver) or any(node.op == "placeholder" for node in nodes):
            continue
        found = [_ends(node, lambda clamp: values.get(places.get(clamp), {})) for node in nodes]
        low = min((ends[0] for ends in found if ends), default=-math.inf)
        high = max((ends[1] for ends in found if ends), default=math.inf)
        if all(found) and math.isfinite(low + high):
            observer.within = low, high


def _ends(value: Node, with_it: Callable[[Node], Iterable[Node]]) -> Ends | None:
    """Between which numbers clamps that read a value leave it, be it moved before; None where others read it, too.

    Args:
        with_it: what is on the grid of a node's result. A clamp's may be that of its operand, which then has to reach
            as far.
    """
    found: list[Ends] = []
    for user in value.users:
        entry = known_import(user)
        if entry is None or not isinstance(user.meta.get("val"), torch.Tensor):
            return None
        if entry.is_activation and all(_stems_from(node, user) for node in with_it(user)):
            low, high = clamp_bounds(NodeArguments(user))
            found.append((-math.inf if low is None else low, math.inf if high is None else high))
        elif entry.moves_only and len(user.all_input_nodes) == 1 and (ends := _ends(user, with_it)) is not None:
            found.append(ends)
        else:
            return None
    return (min(low for low, _ in found), max(high for _, high in found)) if found else None


def _stems_from(node: Node, clamp: Node) -> bool:
    """Whether a node is a clamp, or what it gives, moved."""
    while node is not clamp:
        entry = known_import(node)
        if entry is None or not entry.moves_only or len(node.all_input_nodes) != 1:
            return False
        (node,) = node.all_input_nodes
    return True
