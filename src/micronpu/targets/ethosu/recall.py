"""The best plan for a graph, with its program and its proof, as it is kept on disk.

A plan rests on the graph with every constant, on the options, on Vela, on what writes and runs the flatbuffers, and on
the simulator that its stream was proved in.  Before its program is used the flatbuffer is written again, and compared
with the one that Vela was given.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from micronpu.base.cache import Entry
from micronpu.base.errors import RuntimeUnavailableError
from micronpu.base.parsing import head_and_rest, with_head
from micronpu.ir.graph import Graph, Node, Tensor
from micronpu.targets.ethosu.emitters import emitters_of
from micronpu.targets.ethosu.host.prove import Check
from micronpu.targets.ethosu.kept import entry_of, options_of
from micronpu.targets.ethosu.options import EthosUOptions
from micronpu.targets.ethosu.plans import Offer, Place, Plan, Planned, best_plan, use_cheapest
from micronpu.targets.ethosu.vela.compiler import pack_program, unpack_program


def known_plan(graph: Graph, spec: EthosUOptions, check: Check | None) -> Planned:
    """`best_plan`, which is found once for each graph.

    Args:
        check: that of the options, or None where streams are not proved.

    Raises:
        UnsupportedError: see `best_plan`.
    """
    limit = spec.max_sram_bytes or None
    simulator = simulator_hash() if check is not None else None
    if simulator == b"":  # nothing is proved, and the reason may be another the next time
        return best_plan(graph, spec, memory_limit=limit, check=check)
    entry = entry_of("plan", options_of(spec), simulator, described(graph))
    found = _recalled(entry, graph, spec)
    if found is None:
        found = best_plan(graph, spec, memory_limit=limit, check=check)
        if not found.unproved and entry.is_kept:
            entry.write(_packed(found))
    return found


def described(graph: Graph) -> tuple[Any, ...]:
    """All about a graph that a plan rests on, in values that a hash can be made of."""
    numbers: dict[Tensor, int] = {}

    def numbered(tensors: list[Tensor]) -> list[int]:
        return [numbers.setdefault(t, len(numbers)) for t in tensors]

    nodes = [(n.op, numbered(n.inputs), numbered(n.outputs), n.origin.nodes, n.origin.passes) for n in graph.nodes]
    borders = numbered(graph.inputs), numbered(graph.outputs)
    tensors = [(t.name, t.type, t.data) for t in numbers]
    return nodes, borders, tensors, graph.channels_last_inputs, graph.channels_last_outputs


@functools.cache
def simulator_hash() -> bytes:
    """A hash of the simulator that streams are proved in; b"" where there is none."""
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
        "model": hashlib.sha256(planned.emitted.data).hexdigest(),
    }
    return with_head(header, pack_program(planned.program))


def _recalled(entry: Entry, graph: Graph, spec: EthosUOptions) -> Planned | None:
    """The plan of an entry, carried out; None where there is none, or not of this graph."""
    data = entry.read()
    if data is None:
        return None
    header, packed = head_and_rest(data)
    plan, plans = _plan(header["plan"]), tuple(map(_plan, header["plans"]))
    made = graph
    if plan.rewrites:
        made = graph.clone()
        use_cheapest(made, Told(header["offers"]))
    emitted = emitters_of(spec)[plan.format](made)
    if hashlib.sha256(emitted.data).hexdigest() != header["model"]:
        return None
    program = unpack_program(packed)
    chosen = next(p for p in plans if p == plan)
    return Planned(
        made, emitted, program, chosen, plans, header["rewrites"], waiting=header["waiting"], offers=header["offers"]
    )


class Told:
    """Rewrites that were chosen before, in the order in which they are asked for."""

    def __init__(self, offers: list[Offer | None]) -> None:
        self._next: Iterator[Offer | None] = iter(offers)

    def best(self, node: Node, before: Node | None, place: Place) -> Offer | None:
        return next(self._next)


def _plan(told: dict[str, Any]) -> Plan:
    options = tuple(((section, key), value) for (section, key), value in told["options"])
    return Plan(**{**told, "options": options})
