"""Use of the chip's memories: regions with a verdict, and lifetimes of values in each arena."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from micronpu.report.warnings import DOES_NOT_FIT, WARNING, ReportWarning


@dataclass(frozen=True)
class Item:
    """A part of a memory's content.

    Attributes:
        what: description.
        bytes: its size.
    """

    what: str
    bytes: int


@dataclass(frozen=True)
class Region:
    """A memory of the chip and the program's data in it, without the firmware's own code and data.

    Attributes:
        name: of the memory, such as "sram".
        kind: "sram", "dram", or "flash" for what is only read at run time.
        items: the program's data in it.
        capacity: size in bytes; None if the chip's file has none.
        outside: True if it is a separate chip, whose size depends on the board.
    """

    ALSO: ClassVar[tuple[str, ...]] = ("bytes", "verdict")

    name: str
    kind: str
    items: tuple[Item, ...]
    capacity: int | None = None
    outside: bool = False

    @property
    def bytes(self) -> int:
        """Return the sum of the items' bytes."""
        return sum(item.bytes for item in self.items)

    @property
    def over(self) -> int:
        """Return the excess bytes; 0 if it fits, or its size is unknown."""
        return max(self.bytes - self.capacity, 0) if self.capacity is not None else 0

    @property
    def largest(self) -> str:
        """Return the largest item, as a clause."""
        item = max(self.items, key=lambda item: item.bytes)
        return f"most of it is {item.what}, {item.bytes:,}"

    @property
    def verdict(self) -> str:
        """Return in a few words whether it fits."""
        if self.capacity is None:
            return (
                "outside of the chip, its size is the board's" if self.outside else "of unknown size: no chip is named"
            )
        if self.over:
            return f"over by {self.over:,} bytes"
        return f"fits, {100 * self.bytes / self.capacity:.1f} % of it"


@dataclass(frozen=True)
class Life:
    """A tensor in an arena.

    Attributes:
        name: operation that computes it, or "input 0" and so on.
        bytes: its size with padding.
        offset: from the start of the arena.
        first, last: steps between which it must not be overwritten, both included.
    """

    name: str
    bytes: int
    offset: int
    first: int
    last: int


@dataclass(frozen=True)
class Arena:
    """Memory that tensors with disjoint lifetimes share.

    Attributes:
        name: of the arena.
        region: name of the memory that it is in; "" if the NPU's compiler places it.
        bytes: its size.
        bound: largest sum of live bytes, a lower bound of any placement.
        steps: what happens at each step, in order.
        tensors: its content with offsets and lifetimes.
    """

    ALSO: ClassVar[tuple[str, ...]] = ("peak_step", "peak")

    name: str
    region: str
    bytes: int
    bound: int
    steps: tuple[str, ...]
    tensors: tuple[Life, ...]

    @property
    def peak_step(self) -> int:
        """Return the first step at which the most bytes are alive."""
        steps = sorted({t.first for t in self.tensors})
        return max(steps, key=lambda s: (sum(t.bytes for t in self.alive(s)), -s), default=0)

    @property
    def peak(self) -> tuple[str, ...]:
        """Return names of the tensors that are alive at the peak, the largest first."""
        return tuple(t.name for t in sorted(self.alive(self.peak_step), key=lambda t: -t.bytes))

    def alive(self, step: int) -> list[Life]:
        """Return the tensors that are alive at a step."""
        return [t for t in self.tensors if t.first <= step <= t.last]

    def __str__(self) -> str:
        """``planned memory 1: 16,000 bytes, lower bound 16,000; at the peak (conv2d): 8,000 conv2d, 8,000 input 0``."""
        if not self.tensors:
            return f"{self.name}: {self.bytes:,} bytes"
        step = self.peak_step
        names = {t.name: t.bytes for t in sorted(self.alive(step), key=lambda t: -t.bytes)}
        where = f" ({self.steps[step]})" if step < len(self.steps) else ""
        bound = f"{self.bytes:,} bytes, lower bound {self.bound:,}"
        return f"{self.name}: {bound}; at the peak{where}: {_largest([*names.items()])}"


@dataclass(frozen=True)
class PartitionMemory:
    """A partition's use of the SRAM over time, from the NPU's compiler.

    Attributes:
        name: of the partition.
        steps: its operations that use SRAM, in order, each with its source line.
        bytes: in use during each of them.
        alive: the values that are needed at the peak, the largest first.
    """

    ALSO: ClassVar[tuple[str, ...]] = ("peak_step",)

    name: str
    steps: tuple[str, ...]
    bytes: tuple[int, ...]
    alive: tuple[Item, ...]

    @property
    def peak_step(self) -> int:
        """Return the first step at which the most bytes are in use."""
        return self.bytes.index(max(self.bytes))

    def __str__(self) -> str:
        """``inside partition 0: at most 126,976 bytes, during concat (net.py:18); needed then: 57,344 cat``."""
        most = f"at most {max(self.bytes):,} bytes, during {self.steps[self.peak_step]}"
        alive = [(item.what, item.bytes) for item in self.alive]
        rest = max(self.bytes) - sum(size for _, size in alive)
        more = f"; {rest:,} of weights fetched ahead, working memory and gaps" if rest > 0 else ""
        return f"{self.name}: {most}; needed then: {_largest(alive)}{more}"


def _largest(items: Sequence[tuple[str, int]]) -> str:
    """Return the first four names with their bytes, and the number of others."""
    rest = f" and {len(items) - 4} more" if len(items) > 4 else ""
    return ", ".join(f"{size:,} {name}" for name, size in items[:4]) + rest


@dataclass(frozen=True)
class MemoryReport:
    """Use of memory by a program.

    Attributes:
        regions: the memories of the chip.
        arenas: planned memory of the runtime, and arenas inside the NPU's partitions.
        planned: bytes of each planned memory.
        method_pool, temporary_pool: bytes of the runtime's allocators.
        scratch: scratch memory of each delegate that needs one, within the temporary pool.
        npu_sram: peak use of the SRAM by the NPU; None if unknown.
        inside: use of SRAM by each partition over time, if the NPU's compiler reports it.
        open: unknown figures, a sentence each.
    """

    ALSO: ClassVar[tuple[str, ...]] = ("sram", "flash")

    regions: tuple[Region, ...]
    arenas: tuple[Arena, ...]
    planned: tuple[int, ...]
    method_pool: int
    temporary_pool: int
    scratch: tuple[int, ...] = ()
    npu_sram: int | None = None
    open: tuple[str, ...] = ()
    inside: tuple[PartitionMemory, ...] = ()

    @property
    def sram(self) -> int:
        """Return bytes of SRAM, including the program itself if it runs from there."""
        return sum(region.bytes for region in self.regions if region.kind == "sram")

    @property
    def flash(self) -> int:
        """Return bytes of the program itself, in any memory."""
        return sum(item.bytes for region in self.regions for item in region.items if item.what in PROGRAM)

    @property
    def lines(self) -> tuple[str, ...]:
        """Return a sentence for each region, arena and partition, and what to do if a memory is too small."""
        found = [f"{r.name}: {r.bytes:,} bytes{_of(r)}, {r.verdict}." for r in self.regions]
        return (*found, *map(str, self.too_small), *(f"{part}." for part in (*self.arenas, *self.inside)))

    @property
    def peak(self) -> str:
        """Return what takes most of the SRAM: an arena or partition at its peak, or the runtime; "" if unknown."""
        parts = [(arena.bytes, str(arena)) for arena in self.arenas if arena.tensors]
        runtime = f"the runtime's structures: {self.method_pool:,} bytes, fewer for a program of fewer calls"
        parts += [(max(partition.bytes), str(partition)) for partition in self.inside]
        most, text = max(parts, default=(0, ""))
        return runtime if most and self.method_pool > 2 * most else text

    @property
    def too_small(self) -> tuple[ReportWarning, ...]:
        """Return a warning for each memory that is too small, with what to try."""
        over = [region for region in self.regions if region.over]
        text = "{}: too small by {:,} bytes; {}."
        return tuple(
            ReportWarning(WARNING, DOES_NOT_FIT, text.format(r.name, r.over, r.largest), _REMEDIES[r.kind])
            for r in over
        )


CODE, WEIGHTS, TABLES, REST = "NPU code", "weights and biases", "tables", "plan, headers and padding of the program"
PROGRAM = (CODE, WEIGHTS, TABLES, REST)
"""Items of the program's file."""
_REMEDIES = {
    "dram": "smaller pictures, a chip with more of it",
    "sram": "smaller pictures or fewer channels where the peak is, a chip with more of it",
    "flash": "fewer channels, a chip with more of it, or weights in a file for another memory if the NPU reads one "
    '(--external-weights net, `external_weights="net"` of the options)',
}


def _of(region: Region) -> str:
    return f" of {region.capacity:,}" if region.capacity is not None else ""
