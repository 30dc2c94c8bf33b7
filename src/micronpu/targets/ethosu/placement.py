"""Memory of the weights: in flash, or in SRAM from the start, by estimated cost; one copy for the methods of a program.

Vela encodes weights separately for each method, and two methods of one network have nearly the same bytes: at other
offsets, and some in another order, because their blocks have another depth.

    prefill  [ a b c d ]                          [ a b c d e ]   one datum of the program,
    decode   [ a b' d e ]   b' = b in another order               and two streams that read it

The streams get the addresses, and if necessary the block depth, for the shared copy. Each is compared with its original
in the simulator, and remains unchanged if the results differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from micronpu.base.arrays import Array
from micronpu.base.errors import UnsupportedError
from micronpu.container.trace import graph_key
from micronpu.ops.indices import rows_numbered
from micronpu.partition.device import CompiledPartition
from micronpu.partition.partition import Partition
from micronpu.report.operations import ResidentPrice
from micronpu.targets.ethosu.compile import EthosUPartition, external_blocks, named_block, stored
from micronpu.targets.ethosu.costs import estimated
from micronpu.targets.ethosu.faster import LEAST_GAIN, PART_OF_MEMORY, compared, resident_bytes
from micronpu.targets.ethosu.host.proof import ROWS, integers_for, is_large
from micronpu.targets.ethosu.options import EthosUOptions
from micronpu.targets.ethosu.payload import CONSTANTS, checksum
from micronpu.targets.ethosu.plans import Planned
from micronpu.targets.ethosu.schedule.constants import (
    Layer,
    Ordered,
    layers_of,
    moved,
    pieces_of,
    place_in,
    reads_of,
    reordered,
)
from micronpu.targets.ethosu.stream import actions_of, can_be_rewritten, with_actions
from micronpu.targets.ethosu.vela.compiler import VelaProgram

_FLASH: dict[str, Any] = {"weights": "flash"}
_SRAM: dict[str, Any] = {"weights": "sram", "memory_mode": ""}
"""The two placements, as options."""


@dataclass(frozen=True)
class Placed:
    """A placement, and the cost of both.

    Attributes:
        options: of the placement.
        flash, sram: cycles of either placement; None for SRAM if nothing was compiled for it.
        flash_bytes, sram_bytes: bytes of SRAM.
        why: reason why the weights are not in SRAM, or "".
    """

    options: dict[str, Any]
    flash: int
    flash_bytes: int
    sram: int | None = None
    sram_bytes: int = 0
    why: str = ""

    def __str__(self) -> str:
        both = f"{self.flash:,} cycles and {self.flash_bytes:,} bytes of SRAM with the weights in flash"
        if self.sram is not None:
            part, more = self.sram / max(self.flash, 1), max(self.sram_bytes - self.flash_bytes, 0)
            both = f"{part:.2f} of the time for {more:,} bytes of SRAM more: {both}, {self.sram:,} and "
            both += f"{self.sram_bytes:,} with the weights in SRAM from the start"
        place = "in flash" if self.options is _FLASH else "in SRAM"
        return f'`weights="auto"` puts them {place}{f", since {self.why}" if self.why else ""}; {both}.'


def placed(
    parts: Sequence[Partition], spec: EthosUOptions, plan: Callable[[Partition, EthosUOptions], Planned]
) -> Placed | None:
    """Plan partitions, which are planned for flash, again with all weights in SRAM; keep these plans if they fit and
    pay."""
    plans = [part.plan for part in parts if isinstance(part.plan, Planned)]
    if not plans:
        return None
    cycles, size = _cycles(plans, spec), max(p.program.sram_bytes for p in plans)
    found = Placed(_FLASH, cycles, size)
    if spec.memories is None:
        return replace(found, why=f"the memory mode {spec.memory_mode} has one memory for them and the tensors")
    if not spec.max_sram_bytes:
        return replace(found, why="the size of the SRAM is unknown (`max_sram_bytes`)")
    scratches = [p.prefetch.scratch if p.prefetch is not None else 0 for p in plans]
    if None in [resident_bytes(p.program, spec, scratch) for p, scratch in zip(plans, scratches, strict=True)]:
        return replace(found, why=f"they do not fit {PART_OF_MEMORY:.0%} of {spec.max_sram_bytes:,} bytes")
    there = replace(spec, **_SRAM)
    try:
        moved = [plan(part, there) for part in parts]
    except UnsupportedError as error:
        return replace(found, why=f"there is no program for that: {error.what.rstrip('.')}")
    faster, whole = _cycles(moved, there), _bytes_of_all(moved)
    found = replace(found, sram=faster, sram_bytes=whole)
    if whole > PART_OF_MEMORY * spec.max_sram_bytes:
        return replace(found, why=f"they do not fit {PART_OF_MEMORY:.0%} of {spec.max_sram_bytes:,} bytes")
    if faster > (1 - LEAST_GAIN) * cycles:
        return replace(found, why=f"less than {LEAST_GAIN:.0%} would be saved")
    for part, own in zip(parts, moved, strict=True):
        part.plan = own
    return replace(found, options=_SRAM)


def resident_price(parts: Sequence[EthosUPartition], spec: EthosUOptions) -> ResidentPrice | None:
    """Estimate programs with all weights in SRAM; None if they do not fit or save less than 3 %."""
    scratches = [part.prefetch.scratch if part.prefetch is not None else 0 for part in parts]
    needed = [resident_bytes(part.program, spec, scratch) for part, scratch in zip(parts, scratches, strict=True)]
    known = [size for size in needed if size is not None]
    if not known or len(known) < len(needed):
        return None
    there, now = replace(spec, **_SRAM), sum(part.cycles for part in parts)
    cycles = sum(estimated(part.program, there, with_copies=False).cycles for part in parts)
    if cycles > (1 - LEAST_GAIN) * now:
        return None
    stands = [len(part.program.constants) + len(part.program.commands) for part in parts]
    whole = sum(stands) + max(size - own for size, own in zip(known, stands, strict=True))
    if whole > PART_OF_MEMORY * spec.max_sram_bytes:
        return None
    here = max(part.program.sram_bytes for part in parts)
    return ResidentPrice(cycles / now, max(whole - here, 0))


def _cycles(plans: Sequence[Planned], spec: EthosUOptions) -> int:
    return sum(estimated(plan.program, spec).cycles for plan in plans)


def _bytes_of_all(plans: Sequence[Planned]) -> int:
    """Bytes of SRAM of programs that are all resident, one of which runs at a time."""
    stands = [len(plan.program.constants) + len(plan.program.commands) for plan in plans]
    works = [max(plan.program.sram_bytes - len(plan.program.constants), 0) for plan in plans]
    return sum(stands) + max(works)


_LEAST = 0.5
"""Minimum fraction of a partition's constants that must be in the copy."""


def with_shared_weights(parts: Sequence[CompiledPartition]) -> list[CompiledPartition]:
    """Share constants between partitions of several methods if they are mostly the same."""
    own = [p for p in parts if isinstance(p, EthosUPartition) and p.spec.shared_weights and p.program.constants]
    own = [p for p in own if can_be_rewritten(p.program.commands)]
    orders = _orders(own)
    groups: list[_Copy] = []
    for part in sorted(own, key=lambda p: -p.program.cycles):
        if not any(group.takes(part) for group in groups):
            groups.append(_Copy(orders))
            groups[-1].takes(part)
    made = {id(old): new for group in groups if len(group.members) > 1 for old, new in group.made()}
    return [made.get(id(part), part) for part in parts]


def _orders(parts: Sequence[EthosUPartition]) -> dict[Layer, Ordered]:
    """The order of weights for blocks of the smallest depth, which most other blocks can adopt."""
    found: dict[Layer, Ordered] = {}
    for part in parts:
        program, family = part.program, part.spec.accelerator.family
        for _, layer, own, _ in layers_of(actions_of(program.commands), bytes(program.constants), family):
            if layer not in found or own.depth < found[layer].depth:
                found[layer] = own
    return found


@dataclass
class _Copy:
    """Constants that several programs read, the target order of weights, and the partitions, each with the program that
    reads the copy."""

    orders: Mapping[Layer, Ordered]
    data: bytes = b""
    members: list[tuple[EthosUPartition, VelaProgram]] = field(default_factory=list)

    def takes(self, part: EthosUPartition) -> bool:
        """Add a partition, if it is the first or most of its constants are in the copy."""
        first = self.members[0][0] if self.members else part
        if part.spec.silicon != first.spec.silicon or part.spec.external_weights != first.spec.external_weights:
            return False
        for in_order in (True, False):
            found = self._placed(part, in_order=in_order)
            if found is not None:
                program, self.data = found
                self.members.append((part, program))
                return True
        return False

    def _placed(self, part: EthosUPartition, *, in_order: bool) -> tuple[VelaProgram, bytes] | None:
        """The program of a partition for this copy, optionally with its weights in the target order, and the extended
        copy; None if it does not fit."""
        old, family = part.program, part.spec.accelerator.family
        actions, constants = actions_of(old.commands), bytes(old.constants)
        changed = reordered(actions, constants, self.orders, family) if in_order else None
        if in_order and changed is None:
            return None
        if changed is None and not self.members:
            return old, constants
        made, constants = changed or (actions, constants)
        reads = reads_of(actions, family)
        if reads is None:
            return None
        data = bytearray(self.data)
        places = {piece: place_in(data, constants[slice(*piece)], piece[0]) for piece in pieces_of(reads)}
        if self.members and len(data) - len(self.data) > (1 - _LEAST) * len(constants):
            return None
        commands = with_actions(old.commands, moved(made, reads, places))
        program = replace(old, commands=commands, constants=bytes(data))
        # Waits depend only on writes, and constants are not written: comparing the results suffices.
        objection, _ = compared(old, program, part.spec, _rows(part))
        return None if objection else (program, bytes(data))

    def made(self) -> list[tuple[EthosUPartition, EthosUPartition]]:
        """Each member, and its version that reads the copy."""
        first = self.members[0][0]
        block = named_block(self.data, first.spec.external_weights)
        found = []
        for number, (part, program) in enumerate(self.members):
            whole = replace(program, constants=self.data)
            external = {**external_blocks(program, part.spec), CONSTANTS: block}
            carried = part.named_data.get(graph_key(part.payload))
            payload, named = stored(whole, external, part.trace, carried.data if carried is not None else b"")
            known = stored(part.program, external_blocks(part.program, part.spec), part.trace, b"\0")[1]
            kept = {key: value for key, value in part.named_data.items() if key not in known}
            beside = len(self.data) if not number and not first.spec.external_weights else 0
            new = replace(part, data=payload, named_data={**kept, **named}, program=whole, shares=True, beside=beside)
            found.append((part, new))
        return found


def _rows(part: EthosUPartition) -> list[list[Array]]:
    """Inputs to run a program on, some of the full range, some near zero."""
    graph, seed = part.graph, checksum(part.program)
    inputs = [(t.shape, t.type.dtype.numpy) for t in graph.inputs]
    counts = [rows_numbered(graph, t) for t in graph.inputs]
    return [integers_for(inputs, counts, seed, row) for row in range(1 if is_large(graph) else ROWS)]
