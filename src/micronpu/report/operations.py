"""Operations, inputs, outputs and states of a program with their cost: cycles, bus traffic, time, hotspots."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import ClassVar

from micronpu.base.texts import affine, file_name, plural
from micronpu.ir.graph import Node, Origin
from micronpu.ir.window import Activation
from micronpu.report.codec import flat, named


@dataclass(frozen=True)
class BusTraffic:
    """Traffic of one port of an NPU.

    Attributes:
        memory: behind the port.
        read_bytes, written_bytes: bytes.
        read_beats, written_beats: transfers on the bus, each as wide as the port or narrower, as the counters of the
            hardware count them.
    """

    memory: str
    read_bytes: int = 0
    written_bytes: int = 0
    read_beats: int = 0
    written_beats: int = 0

    def __add__(self, other: BusTraffic) -> BusTraffic:
        counts = [name.name for name in fields(self) if name.name != "memory"]
        return BusTraffic(self.memory, *(getattr(self, name) + getattr(other, name) for name in counts))

    def __str__(self) -> str:
        """``19,490,040 bytes read in 2,437,008 beats, 7,644,632 written in 955,579 (Sram)``."""
        read = f"{self.read_bytes:,} bytes read in {self.read_beats:,} beats"
        return f"{read}, {self.written_bytes:,} written in {self.written_beats:,} ({self.memory})"


def together(parts: Iterable[Mapping[str, BusTraffic]]) -> dict[str, BusTraffic]:
    """Return the sums by name of the port."""
    found: dict[str, BusTraffic] = {}
    for part in parts:
        for port, traffic in part.items():
            found[port] = found[port] + traffic if port in found else traffic
    return dict(sorted(found.items()))


def renamed(bus: Mapping[str, BusTraffic], name: Callable[[str], str]) -> dict[str, BusTraffic]:
    """Return the traffic with other names of the memories."""
    return {port: replace(traffic, memory=name(traffic.memory)) for port, traffic in bus.items()}


@dataclass(frozen=True)
class Cost:
    """Cost of an operation of an NPU program, estimated by the NPU's compiler or by a model of the NPU.

    Attributes:
        cycles: of the NPU, until the operation is done.
        arithmetic_cycles: cycles of its arithmetic; the remaining ones wait for a memory.
        memory_cycles: cycles for reading and writing each memory, by its name.
        memory_bytes: bytes of working memory in use during the operation.
        utilisation: share of the multipliers' cycles that the MACs fill, 0 to 1.
        start_cycles: cycles before anything is computed, if known.
        clock_mhz: clock of the cycles; None if unknown.
        bus: bus traffic by port of the NPU; empty if unknown.
    """

    ALSO: ClassVar[tuple[str, ...]] = ("bound_by", "microseconds")

    cycles: int
    arithmetic_cycles: int
    memory_cycles: Mapping[str, int]
    memory_bytes: int
    utilisation: float
    start_cycles: int = 0
    clock_mhz: float | None = None
    bus: Mapping[str, BusTraffic] = field(default_factory=dict)

    def renamed(self, name: Callable[[str], str]) -> Cost:
        """Return the cost with other names of the memories."""
        waits: dict[str, int] = {}
        for memory, cycles in self.memory_cycles.items():
            waits[name(memory)] = waits.get(name(memory), 0) + cycles
        return replace(self, memory_cycles=waits, bus=renamed(self.bus, name))

    @property
    def bound_by(self) -> str:
        """Return the bottleneck: "arithmetic", "start", or the name of a memory."""
        parts = {"arithmetic": self.arithmetic_cycles, "start": self.start_cycles, **self.memory_cycles}
        return max(parts, key=parts.__getitem__)

    @property
    def microseconds(self) -> float | None:
        """Return the time of the cycles; None if the clock is unknown."""
        return self.cycles / self.clock_mhz if self.clock_mhz else None


@dataclass(frozen=True)
class Operation:
    """One operation of an NPU program; several operators of the model may be fused into it.

    Attributes:
        partition: number of its partition.
        name: operator of the NPU and the clamp that it applies to its result, such as "conv2d + relu".
        attributes: the operator with its attributes, as the graph's text shows it.
        shape: sizes of the result, in the order of axes that the NPU uses.
        macs: multiply-accumulate operations.
        origin: operators of the model that it computes.
        cost: estimate of the NPU's compiler, or None.
        bytes_read, bytes_written: bytes of activations, on the NPU and on the core.
        constant_bytes: weights and tables that it reads.
        dtype: of the elements of the result.
        scale, zero_point: of the result; None if it has none, or one per channel.
        sparse: True if the NPU reads its weights in 2:4 form and skips the zeros.
    """

    partition: int
    name: str = field(metadata=named("operation"))
    attributes: str
    shape: tuple[int, ...]
    macs: int
    origin: Origin = field(metadata=flat("nodes", "source", "module", "passes"))
    cost: Cost | None = None
    bytes_read: int = 0
    bytes_written: int = 0
    constant_bytes: int = 0
    dtype: str = ""
    scale: float | None = None
    zero_point: int | None = None
    sparse: bool = False

    @classmethod
    def of(cls, partition: int, node: Node, cost: Cost | None = None, sparse: bool = False) -> Operation:
        """Return the entry of a node of the partition's final graph."""
        clamp = getattr(node.op, "activation", None)
        fused = isinstance(clamp, Activation) and clamp is not Activation.NONE
        result = node.outputs[0].type
        work = node.op.work(result, *node.input_types, constant=tuple(t.is_constant for t in node.inputs))
        quantized = result.qparams if result.qparams is not None and len(result.qparams.scale) == 1 else None
        return cls(
            partition=partition,
            name=f"{node.op.name} + {clamp.name.lower()}" if clamp is not None and fused else node.op.name,
            attributes=str(node.op),
            shape=result.shape,
            macs=work.macs,
            origin=node.origin,
            cost=cost,
            bytes_read=work.bytes_read,
            bytes_written=work.bytes_written,
            constant_bytes=work.constant_bytes,
            dtype=result.dtype.value,
            scale=quantized.scale[0] if quantized is not None else None,
            zero_point=quantized.zero_point[0] if quantized is not None else None,
            sparse=sparse,
        )


@dataclass(frozen=True)
class IOTensor:
    """An input or output of the program.

    Attributes:
        name: of the input, or "output_0" and so on.
        dtype: of its elements, as torch calls it.
        shape: sizes.
        scale, zero_point: qparams of its integers, or of the integers that the program converts floats to; None if it
            is not quantized.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    scale: float | None = None
    zero_point: int | None = None


@dataclass(frozen=True)
class StateRow:
    """A buffer of the model that persists from one call to the next.

    Attributes:
        name: in the model.
        dtype: of its elements in the program.
        shape: sizes.
        bytes: of memory that it occupies permanently.
        scale, zero_point: qparams of its integers, before and after a call; None if it is not quantized.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    scale: float | None = None
    zero_point: int | None = None

    def __str__(self) -> str:
        suffix = "" if self.scale is None else f", {affine(self.scale, self.zero_point)}"
        return f"`{self.name}` {self.dtype}[{', '.join(map(str, self.shape))}] of {self.bytes:,} bytes{suffix}"


_LARGE, _IDLE = 0.25, 0.15
"""Minimum share of the cycles, and maximum use of the multipliers, of operations that `idle_hotspot` reports."""


@dataclass(frozen=True)
class Hotspot:
    """Cost of all operations of one name.

    Attributes:
        name: of the operation, such as "resize_bilinear".
        count: number of operations.
        processor: "NPU", or "core".
        cycles: of its clock.
        share: of the cycles of all operations on this processor, 0 to 1.
        use: share of the multipliers' cycles that their MACs fill, 0 to 1; None if unknown.
        sources: source lines of the model, or modules if the line is torch's, most expensive first.
    """

    name: str
    count: int
    processor: str
    cycles: int
    share: float
    use: float | None
    sources: tuple[str, ...]

    def __str__(self) -> str:
        use = "" if self.use is None else f", with {100 * self.use:.0f} % of the multipliers in use"
        times = f" ({plural(self.count, 'operation')})" if self.count > 1 else ""
        first = self.sources[0] if self.sources else ""
        where = f"; {file_name(first)}" if ":" in first else f"; module `{first}`" if first else ""
        return f"`{self.name}`{times} takes {100 * self.share:.0f} % of the {self.processor}'s cycles{use}{where}"


def hotspots(npu: Iterable[Operation], core: Iterable[Operation]) -> tuple[Hotspot, ...]:
    """Return operations by name and processor, most expensive first."""
    found = [*_grouped("NPU", npu, whole_array=True), *_grouped("core", core, whole_array=False)]
    return tuple(sorted(found, key=lambda spot: (spot.processor != "NPU", -spot.cycles)))


def idle_hotspot(npu: Iterable[Operation]) -> Hotspot | None:
    """Return the most expensive operations that take much of the NPU's time and hardly use its multipliers, or None."""
    return next((s for s in hotspots(npu, ()) if s.share >= _LARGE and s.use is not None and s.use < _IDLE), None)


def _grouped(processor: str, operations: Iterable[Operation], *, whole_array: bool) -> list[Hotspot]:
    groups: dict[str, list[Operation]] = {}
    for operation in operations:
        if operation.cost is not None:
            groups.setdefault(operation.name.split(" + ")[0], []).append(operation)
    total = sum(_cycles(group) for group in groups.values())
    return [
        Hotspot(
            name=name,
            count=len(group),
            processor=processor,
            cycles=_cycles(group),
            share=_cycles(group) / total if total else 0.0,
            use=_use(group) if whole_array else None,
            sources=_sources(group),
        )
        for name, group in groups.items()
    ]


def _cycles(group: Iterable[Operation]) -> int:
    return sum(o.cost.cycles for o in group if o.cost is not None)


def _use(group: Sequence[Operation]) -> float | None:
    """Return the use of the multipliers, weighted by cycles; None if no operation has a MAC."""
    cycles = _cycles(group)
    if not cycles or not any(o.macs for o in group):
        return None
    return sum(o.cost.cycles * o.cost.utilisation for o in group if o.cost is not None) / cycles


def _sources(group: Iterable[Operation]) -> tuple[str, ...]:
    found: dict[str, int] = {}
    for operation in group:
        place = operation.origin.source or operation.origin.module
        if place and operation.cost is not None:
            found[place] = found.get(place, 0) + operation.cost.cycles
    return tuple(sorted(found, key=lambda source: -found[source]))


@dataclass(frozen=True)
class Latency:
    """Estimated time of one call on a processor.

    Attributes:
        processor: "NPU", the title of the core, or the overhead of invocations of the NPU.
        cycles: of its clock.
        clock_mhz: the clock.
        low, high: factors of the time that contain the published measurements of other networks.
        source: source of the cycles, one clause.
    """

    ALSO: ClassVar[tuple[str, ...]] = ("milliseconds", "band")

    processor: str
    cycles: int
    clock_mhz: float
    low: float
    high: float
    source: str

    @property
    def milliseconds(self) -> float:
        """Return the estimate in milliseconds."""
        return self.cycles / self.clock_mhz / 1000

    @property
    def band(self) -> tuple[float, float]:
        """Return lower and upper end in milliseconds."""
        return self.low * self.milliseconds, self.high * self.milliseconds

    @property
    def digits(self) -> int:
        """Return the number of decimal places for two or three significant digits."""
        time = self.milliseconds
        return 0 if time >= 100 else 1 if time >= 10 else 2 if time >= 0.1 else 3 if time >= 0.01 else 4

    def __str__(self) -> str:
        """``NPU: about 6.3 ms (5.1 to 7.9), 948,100 cycles at 150 MHz, by ...``."""
        low, high = self.band
        digits = self.digits
        time = f"about {self.milliseconds:.{digits}f} ms ({low:.{digits}f} to {high:.{digits}f})"
        return f"{self.processor}: {time}, {self.cycles:,} cycles at {self.clock_mhz:g} MHz, by {self.source}."


@dataclass(frozen=True)
class ResidentPrice:
    """The NPU's programs with their weights in SRAM, compared with weights in flash.

    Attributes:
        time: of the NPU, as a fraction of its current time; an estimate.
        sram_bytes: additional bytes of SRAM, for the blocks of the NPU and for the host's part of the program.
    """

    time: float
    sram_bytes: int

    def __str__(self) -> str:
        """``0.58 of the NPU's time for 84,000 bytes of SRAM more``."""
        return f"{self.time:.2f} of the NPU's time for {self.sram_bytes:,} bytes of SRAM more"
