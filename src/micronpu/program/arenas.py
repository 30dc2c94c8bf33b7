"""Split planned tensors between two memories: the most accessed ones that fit go into the fast memory.

The plan of a `.pte` uses one memory. Tensors that overlap while both are live (views, in-place kernels) stay together
as one block; blocks are placed again by lifetime. New allocation tables are appended to the flatbuffer and its
references updated; the rest of the file is unchanged.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from micronpu.base.errors import UnsupportedError
from micronpu.base.texts import inside
from micronpu.program.edit import append, with_flatbuffer
from micronpu.program.operators import VIEW, signature_of
from micronpu.program.plan import Plan, PlanValue, read_plan
from micronpu.program.pte import ELEMENT_BYTES, opened, whole
from micronpu.upstream.pte import EValue, ExecutionPlan, Program, Tensor

_ALIGNMENT, _WIDEST = 16, 8
COLD, HOT = 1, 2
"""Memory numbers of the two memories."""


@dataclass
class _Block:
    """Overlapping tensors: address range, lifetime, and the number of accesses per inference."""

    members: list[int]
    begin: int
    end: int
    first: int
    last: int
    touches: int

    @property
    def size(self) -> int:
        return self.end - self.begin

    def lives_with(self, other: _Block) -> bool:
        return self.first <= other.last and other.first <= self.last

    def stands_on(self, other: _Block) -> bool:
        return self.begin < other.end and other.begin < self.end

    def takes(self, other: _Block) -> None:
        self.members += other.members
        self.begin, self.end = min(self.begin, other.begin), max(self.end, other.end)
        self.first, self.last = min(self.first, other.first), max(self.last, other.last)
        self.touches += other.touches


class _Arena:
    def __init__(self) -> None:
        self.placed: list[tuple[int, _Block]] = []
        self.size = 0

    def offset_for(self, block: _Block) -> int:
        """Return the lowest offset that is free during the block's lifetime."""
        taken = sorted((at, at + other.size) for at, other in self.placed if block.lives_with(other))
        offset = 0
        for begin, end in taken:
            if offset + block.size <= begin:
                break
            offset = max(offset, -(-end // _ALIGNMENT) * _ALIGNMENT)
        return offset

    def put(self, block: _Block, offset: int) -> None:
        self.placed.append((offset, block))
        self.size = max(self.size, offset + block.size)


def divided(data: bytes, fast: int, name: str = "The program") -> bytes:
    """Return the program with its tensors in two planned memories, of which the second has at most ``fast`` bytes.

    Raises:
        UnsupportedError: the program has no planned memory or several, branches or loops, or no tensor fits.
        PayloadError: the file is damaged.
    """
    plan, _ = read_plan(data, name=name)
    if len(plan.memories) != 1:
        raise UnsupportedError(
            f"{name} has {len(plan.memories)} planned memories; only one is divided.", hint="without --hot"
        )
    if any(call.kind not in ("KernelCall", "DelegateCall", "FreeCall") for call in plan.calls) or len(plan.chains) != 1:
        raise UnsupportedError(
            f"{name} branches or loops, so that when its tensors live is not known.", hint="without --hot"
        )
    blocks = _blocks(plan)
    hot, cold = _Arena(), _Arena()
    rest = []
    for block in sorted(blocks, key=lambda b: (-b.touches, b.size, b.begin)):
        offset = hot.offset_for(block)
        if offset + block.size <= fast:
            hot.put(block, offset)
        else:
            rest.append(block)
    if not hot.placed:
        smallest = min((block.size for block in blocks), default=0)
        raise UnsupportedError(
            f"No tensor of {inside(name)} fits into {fast} bytes: the smallest has {smallest}.",
            hint="a larger memory",
        )
    for block in sorted(rest, key=lambda b: (-b.size, b.begin)):
        cold.put(block, cold.offset_for(block))
    places = {}
    for number, arena in ((COLD, cold), (HOT, hot)):
        for offset, block in arena.placed:
            for value in block.members:
                places[value] = (number, offset + plan.values[value].offset - block.begin)
    with whole(name):
        return _rewritten(data, name, plan.name, places, (cold.size, hot.size))


def _shown(plan: Plan) -> dict[int, tuple[int, ...]]:
    """Map each view to itself and the tensors that it aliases; the runtime gives it their address."""
    found: dict[int, tuple[int, ...]] = {}
    for call in plan.calls:
        if call.operator == VIEW:
            base, view = call.arguments[0], call.arguments[-1]
            found[view] = (view, *found.get(base, (base,)))
    return found


def _blocks(plan: Plan) -> list[_Block]:
    """Group overlapping tensors; each planned tensor is in exactly one block."""
    end = len(plan.calls)
    shown = _shown(plan)
    touched = _touched(plan, shown)
    inputs = {index for number in plan.inputs for index in shown.get(number, (number,))}
    outputs = {index for number in plan.outputs for index in shown.get(number, (number,))}
    written = _written_first(plan)
    blocks: list[_Block] = []
    planned = {number: value for number, value in enumerate(plan.values) if value.tensor is not None and value.planned}
    sizes = {number: max(_size(value), 1) for number, value in planned.items()}
    for number, value in planned.items():
        steps = touched.get(number, [-1, end])
        first = -1 if number in inputs else min(steps)
        last = end if number in outputs else max(steps)
        made = _Block([number], value.offset, value.offset + sizes[number], first, last, len(steps))
        if number not in written and number not in inputs:
            places = {other: (place.offset, place.offset + sizes[other]) for other, place in planned.items()}
            made.first, made.last = _life_of_view(made, touched, places, end)
        # A merged block may overlap further blocks, so repeat until nothing changes.
        while joined := [b for b in blocks if b.lives_with(made) and b.stands_on(made)]:
            for block in joined:
                made.takes(block)
                blocks.remove(block)
        blocks.append(made)
    return blocks


def _touched(plan: Plan, shown: Mapping[int, Sequence[int]]) -> dict[int, list[int]]:
    """Return the steps in which each value is read or written, also through a view."""
    touched: dict[int, list[int]] = {}
    for step, call in enumerate(plan.calls):
        named = [index for argument in call.arguments for index in (argument, *plan.values[argument].items)]
        for index in named:
            for value_of in shown.get(index, (index,)) if index >= 0 else ():
                touched.setdefault(value_of, []).append(step)
    return touched


def _life_of_view(
    made: _Block, touched: Mapping[int, Sequence[int]], places: Mapping[int, tuple[int, int]], end: int
) -> tuple[int, int]:
    """Return the first and last step of a view that no call creates.

    It aliases the tensor that was accessed last at its address; if that covers only a part of it, all earlier tensors
    there; without any, data of an earlier run.

    Args:
        touched: the steps in which each tensor is accessed.
        places: begin and end of each.
        end: the step after the last.
    """
    first = made.first
    before = [
        (max(step for step in touched[other] if step < first), other)
        for other, (begin, behind) in places.items()
        if min(touched.get(other, [end])) < first and begin < made.end and made.begin < behind
    ]
    if not before:
        return -1, end
    newest = max(step for step, _ in before)
    whole = any(s == newest and places[o][0] <= made.begin and made.end <= places[o][1] for s, o in before)
    return newest if whole else min(min(touched[other]) for _, other in before), made.last


def _size(value: PlanValue) -> int:
    assert value.tensor is not None
    return prod(value.tensor.shape) * ELEMENT_BYTES.get(value.tensor.dtype, _WIDEST)


def _written_first(plan: Plan) -> set[int]:
    """Return tensors that the first call naming them writes or uses as scratch; unknown for delegates."""
    seen: set[int] = set()
    found: set[int] = set()
    for call in plan.calls:
        signature = signature_of(call.operator) if call.operator else None
        parameters = signature.parameters if signature is not None else ()
        results = {i for i, p in zip(call.arguments, parameters, strict=False) if p.written or "scratch" in p.name}
        read = {i for i, p in zip(call.arguments, parameters, strict=False) if not (p.written or "scratch" in p.name)}
        found |= results - seen - read
        seen |= {index for argument in call.arguments for index in (argument, *plan.values[argument].items)}
    return found


def _rewritten(
    data: bytes, name: str, method: str, places: dict[int, tuple[int, int]], memories: Sequence[int]
) -> bytes:
    program, size, _, _ = opened(data, name)
    image = bytearray(memoryview(data)[:size])
    tables = program.vector(Program.EXECUTION_PLAN).tables()
    (plan,) = [table for table in tables if table.string(ExecutionPlan.NAME) == method]
    sizes = struct.pack(f"<I{1 + len(memories)}q", 1 + len(memories), 0, *memories)  # the first is for constants
    append(image, plan.offset(ExecutionPlan.NON_CONST_BUFFER_SIZES), sizes, before=4)
    for number, table in enumerate(plan.vector(ExecutionPlan.VALUES).tables()):
        body = table.table(EValue.VAL)
        if number in places and body is not None:
            memory, offset = places[number]
            # A new table with four fields: the offset to its field list, the fields, then the list.
            fields = struct.pack("<iIII", -16, memory, offset & 0xFFFFFFFF, offset >> 32)
            listed = struct.pack("<5H", 10, 16, 4, 8, 12)
            append(image, body.offset(Tensor.ALLOCATION_INFO), fields + listed, before=0)
    image += bytes(-len(image) % 8)
    return with_flatbuffer(data, image, name)
