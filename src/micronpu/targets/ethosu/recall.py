"""Cache of the best plan for a graph, with its program, prefetched weights and verification.

The key consists of the graph with every constant, the options, Vela, the code that writes and runs flatbuffers, and the
simulator that verified the stream. A cached program is used only if the flatbuffer, written again, equals Vela's input.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from micronpu.base.cache import Entry
from micronpu.base.errors import RuntimeUnavailableError
from micronpu.base.parsing import head_and_rest, with_head
from micronpu.ir.graph import Graph, Node, Tensor
from micronpu.targets.ethosu.legalize import emitters_of
from micronpu.targets.ethosu.options import EthosUOptions
from micronpu.targets.ethosu.plans import NodeContext, Offer, Planned, VelaPlan, use_cheapest
from micronpu.targets.ethosu.rewrites import TO_COME_EARLIER, in_parts
from micronpu.targets.ethosu.schedule.prefetch import PrefetchResult
from micronpu.targets.ethosu.vela.compiler import entry_of, options_of, pack_program, unpack_program


def known_plan(graph: Graph, spec: EthosUOptions, plan: Callable[[], Planned]) -> Planned:
    """Return the plan of a graph from the cache, or else the result of ``plan``, which is then cached."""
    runs = spec.verify_streams or (spec.prefetch and spec.memories is not None)
    simulator = simulator_hash() if runs else None
    if simulator == b"":  # nothing is verified, and the next time may differ
        return plan()
    entry = entry_of("plan", options_of(spec), simulator, described(graph))
    found = _recalled(entry, graph, spec)
    if found is None:
        found = plan()
        prefetch = found.prefetch
        is_proved = not found.unproved and (prefetch is None or not (prefetch.objection or prefetch.unproved))
        if is_proved and entry.is_kept:
            entry.write(_packed(found))
    return found


def described(graph: Graph) -> tuple[object, ...]:
    """All properties of a graph that a plan depends on, as hashable values."""
    numbers: dict[Tensor, int] = {}

    def numbered(tensors: list[Tensor]) -> list[int]:
        return [numbers.setdefault(t, len(numbers)) for t in tensors]

    nodes = [(n.op, numbered(n.inputs), numbered(n.outputs), n.origin.nodes, n.origin.passes) for n in graph.nodes]
    io = numbered(graph.inputs), numbered(graph.outputs)
    tensors = [(t.name, t.type, t.data) for t in numbers]
    return nodes, io, tensors, graph.channels_last_inputs, graph.channels_last_outputs


@functools.cache
def simulator_hash() -> bytes:
    """Hash of the simulator that verifies streams; b"" if it is not available."""
    from micronpu.targets.ethosu.host.simulator import load_simulator

    try:
        with open(str(load_simulator()._name), "rb") as file:
            return hashlib.sha256(file.read()).digest()
    except (RuntimeUnavailableError, OSError):
        return b""


def _packed(planned: Planned) -> bytes:
    header = {
        "plan": asdict(planned.plan),
        "plans": [asdict(plan) for plan in planned.plans],
        "rewrites": planned.rewrites,
        "offers": planned.offers,
        "waiting": planned.waiting,
        "prefetch": asdict(planned.prefetch) if planned.prefetch is not None else None,
        "model": hashlib.sha256(planned.emitted.data).hexdigest(),
    }
    return with_head(header, pack_program(planned.program))


def _recalled(entry: Entry, graph: Graph, spec: EthosUOptions) -> Planned | None:
    """Return the plan of an entry with its program; None if there is none, or not for this graph."""
    data = entry.read()
    if data is None:
        return None
    header, packed = head_and_rest(data)
    plan, plans = _plan(header["plan"]), tuple(map(_plan, header["plans"]))
    made = graph
    if plan.rewrites:
        made = graph.clone()
        use_cheapest(made, ReplayedOffers(header["offers"]))
    if not header["rewrites"].keys().isdisjoint(rewrite.name for rewrite in TO_COME_EARLIER):
        made = made.clone()
        in_parts(made, spec.disabled_passes)
    emitted = emitters_of(spec)[plan.format](made)
    if hashlib.sha256(emitted.data).hexdigest() != header["model"]:
        return None
    chosen, prefetch = next(p for p in plans if p == plan), header["prefetch"]
    return Planned(
        *(made, emitted, unpack_program(packed), chosen, plans, header["rewrites"]),
        waiting=header["waiting"],
        offers=header["offers"],
        prefetch=PrefetchResult(**prefetch) if prefetch is not None else None,
    )


class ReplayedOffers:
    """Replays earlier choices of rewrites, in the order of the queries."""

    def __init__(self, offers: list[Offer | None]) -> None:
        self._next: Iterator[Offer | None] = iter(offers)

    def best(self, node: Node, before: Node | None, place: NodeContext) -> Offer | None:
        return next(self._next)


def _plan(record: dict[str, Any]) -> VelaPlan:
    options = tuple(((section, key), value) for (section, key), value in record["options"])
    return VelaPlan(**{**record, "options": options})
