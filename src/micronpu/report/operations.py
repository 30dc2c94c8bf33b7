"""Operations, inputs, outputs and states of a program, as reports list them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from micronpu.ir.graph import Node, Origin
from micronpu.ir.window import Activation
from micronpu.report.codec import flat, named
from micronpu.report.traffic import BusTraffic


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
        suffix = "" if self.scale is None else f", {self.scale:g} * (q - {self.zero_point})"
        return f"`{self.name}` {self.dtype}[{', '.join(map(str, self.shape))}] of {self.bytes:,} bytes{suffix}"
