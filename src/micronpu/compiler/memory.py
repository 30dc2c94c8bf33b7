"""Use of the chip's memories by a finished program, read from its bytes.

The `.pte` contains the runtime's plan: the place of each tensor, and the calls that read or write it.  So the figures
are those of the device, for any writer of the plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from micronpu.compiler.thresholds import ALIGNMENT
from micronpu.ir.graph import Graph, Tensor
from micronpu.partition.device import CompiledPartition
from micronpu.partition.memory import Lifetime, lower_bound, place
from micronpu.program.plan import Plan, PlanCall, PlanValue
from micronpu.report.memory import PROGRAM, REST, Arena, Item, Life, MemoryReport, PartitionMemory
from micronpu.report.texts import file_name
from micronpu.targets.board import board_of, pools_of

_HIDDEN = (
    "The vendor's converter decides how much SRAM the NPU uses; the tensors inside of a partition take at least the "
    "size of its arena."
)


def memory_of(
    plan: Plan,
    size: int,
    target: str,
    consists_of: Sequence[Mapping[str, int]],
    parts: Sequence[CompiledPartition],
) -> MemoryReport:
    """Return the memory use of a program.

    Args:
        plan: of the method, in the program for the board.
        size: of the program in bytes.
        target: that it was compiled for.
        consists_of: bytes of the program's file by kind, of `PROGRAM`; the remainder is `REST`.
        parts: compiled partitions.
    """
    pools = pools_of(plan)
    board = board_of(plan, target)
    sums = {what: sum(own.get(what, 0) for own in consists_of) for what in PROGRAM}
    items = [Item(what, size) for what, size in sums.items() if size]
    items.append(Item(REST, max(size - sum(item.bytes for item in items), 0)))
    arenas = [arena_of(plan, i, board.sram) for i, size in enumerate(plan.memories, 1) if size]
    known = [part.npu_sram for part in parts if part.npu_sram is not None]
    inside = [graph_arena(f"inside partition {i}", p.graph) for i, p in enumerate(parts) if p.npu_sram is None]
    return MemoryReport(
        regions=board.regions(items, pools),
        arenas=(*arenas, *inside),
        planned=pools.planned,
        method_pool=pools.method,
        temporary_pool=pools.temporary,
        scratch=pools.scratch,
        npu_sram=max(known, default=None),
        inside=tuple(
            found
            for i, part in enumerate(parts)
            if part.npu_sram is not None and (found := partition_memory(f"inside partition {i}", part)) is not None
        ),
        open=(*pools.open, *([_HIDDEN] if inside else [])),
    )


def arena_of(plan: Plan, number: int, region: str) -> Arena:
    """Return the lifetimes in a planned memory.

    The calls of the plan are the steps.  Tensors at one place with adjacent lifetimes are merged: they are views of the
    same bytes.
    """
    calls, last_step = plan.calls, max(len(plan.calls) - 1, 0)
    names: dict[int, str] = {}
    used: dict[int, list[int]] = {}
    for i, index in enumerate(plan.inputs):
        names[index] = f"input {i}"
        used[index] = [0]
    for i, index in enumerate(i for i, value in enumerate(plan.values) if value.initial is not None):
        names[index] = f"state {i}"
        used[index] = [0, last_step]
    steps = [_step(call) for call in calls]
    for step, call in enumerate(calls):
        for index in call.arguments:
            if plan.values[index].planned == number:
                names.setdefault(index, f"{steps[step]}, step {step}")
                used.setdefault(index, []).append(step)
    for i, index in enumerate(plan.outputs):
        names.setdefault(index, f"output {i}")
        used.setdefault(index, []).append(last_step)
    found: list[Life] = []
    latest: dict[int, int] = {}  # by offset, number of the one that began last: those before it have ended
    for index, at in sorted(used.items(), key=lambda entry: (min(entry[1]), entry[0])):
        value = plan.values[index]
        if value.planned != number or value.tensor is None:
            continue
        own = Life(names[index], _bytes(value), value.offset, min(at), max(at))
        same = found[latest[own.offset]] if own.offset in latest else None
        if same is None or own.first > same.last:
            latest[own.offset] = len(found)
            found.append(own)
        else:
            joined = Life(same.name, max(same.bytes, own.bytes), same.offset, same.first, max(same.last, own.last))
            found[latest[own.offset]] = joined
    bound = lower_bound([Lifetime(t.bytes, t.first, t.last) for t in found])
    return Arena(f"planned memory {number}", region, plan.memories[number - 1], bound, tuple(steps), tuple(found))


def partition_memory(name: str, part: CompiledPartition) -> PartitionMemory | None:
    """Return a partition's memory use over time, from its compiler's estimates; None without estimates."""
    counted = [(i, cost.memory_bytes) for i, cost in sorted(part.costs.items()) if cost.memory_bytes]
    if not counted:
        return None
    names = []
    for i, _ in counted:
        node = part.graph.nodes[i]
        place = file_name(node.origin.source)
        names.append(f"{node.op.name} ({place})" if place else node.op.name)
    most = max(counted, key=lambda entry: entry[1])[0]
    made_by = zip(*_lives(part.graph, _steps(part.graph)), strict=True)
    alive = [Item(label, life.size) for label, life in made_by if life.first <= most <= life.last]
    alive += [Item("prefetched weights", part.prefetched)] if part.prefetched else []
    alive.sort(key=lambda item: -item.bytes)
    return PartitionMemory(name, tuple(names), tuple(size + part.prefetched for _, size in counted), tuple(alive))


def _step(call: PlanCall) -> str:
    if call.kind == "DelegateCall":
        return f"partition {call.delegate}"
    return call.operator.rpartition("::")[2].removesuffix(".out") or call.kind


def _bytes(value: PlanValue) -> int:
    assert value.tensor is not None
    return -(-value.tensor.bytes // ALIGNMENT) * ALIGNMENT


def graph_arena(name: str, graph: Graph) -> Arena:
    """Return the arena of a partition's tensors, placed by their lifetimes like the runtime's."""
    steps = _steps(graph)
    labels, lives = _lives(graph, steps)
    placement = place(lives)
    tensors = tuple(
        Life(label, life.size, offset, life.first, life.last)
        for label, life, offset in zip(labels, lives, placement.offsets, strict=True)
    )
    return Arena(name, "", placement.size, lower_bound(lives), steps, tensors)


def _steps(graph: Graph) -> tuple[str, ...]:
    return tuple(node.origin.nodes[-1] if node.origin.nodes else node.op.name for node in graph.nodes)


def _lives(graph: Graph, steps: Sequence[str]) -> tuple[list[str], list[Lifetime]]:
    """Return the producer of each tensor of a graph, and its lifetime.

    Args:
        steps: names of the graph's nodes.
    """
    last_step = max(len(graph.nodes) - 1, 0)
    labels = {t: f"input {i}" for i, t in enumerate(graph.inputs)}
    used: dict[Tensor, list[int]] = {t: [0] for t in graph.inputs}
    for number, (step, node) in enumerate(zip(steps, graph.nodes, strict=True)):
        for tensor in (*node.inputs, *node.outputs):
            if not tensor.is_constant:
                labels.setdefault(tensor, step)
                used.setdefault(tensor, []).append(number)
    for tensor in graph.outputs:
        if tensor in used:
            used[tensor].append(last_step)
    lives = [Lifetime(-(-t.type.bytes // ALIGNMENT) * ALIGNMENT, min(at), max(at)) for t, at in used.items()]
    return [labels[t] for t in used], lives
