"""Time of operators that the core computes in float, between a dequantize and a quantize."""

from __future__ import annotations

from micronpu.chips import Chip
from micronpu.chips.core import CORES, InstructionSet
from micronpu.compiler import thresholds as at
from micronpu.report.operations import Latency


def float_cycles(macs: int, elements: int, chip: Chip | None) -> int:
    """Estimated cycles of an operator in a portable float kernel, by default on a core that computes with floats.

    Args:
        elements: of the tensors that it reads and writes.
    """
    core = CORES.get(chip.core) if chip is not None else None
    slower = at.SOFT_FLOAT if core is not None and core.instructions is InstructionSet.SCALAR else 1.0
    return round(at.FLOAT_CALL + slower * (elements * at.FLOAT_ELEMENT + macs * at.FLOAT_MAC))


def float_latency(cycles: int, chip: Chip | None) -> tuple[Latency, ...]:
    """Estimated time of operators in float; empty if there are none, or the clock is unknown."""
    clock_mhz = None if chip is None else chip.core_clock_mhz
    if not cycles or clock_mhz is None:
        return ()
    return (Latency("core in float", cycles, clock_mhz, *at.FLOAT_BAND, "assumed cycles of an element and of a MAC"),)
