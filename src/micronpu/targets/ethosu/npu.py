"""The Ethos-U section of a chip file, and the error bands of estimates in it; see benchmarks/ethosu_latency.py."""

from __future__ import annotations

from dataclasses import dataclass

from micronpu.chips import ACTIVATIONS, MEASURED, WEIGHTS, Chip, Memory
from micronpu.targets.ethosu.accelerators import entries_for, find_accelerator


@dataclass(frozen=True)
class Timing:
    """Error bands of the estimate relative to silicon.

    Attributes:
        low, high: range of measured over estimated time, without invocations.
        call_us: microseconds of an invocation in addition to the NPU's time: minimum, typical, maximum.
        basis: source of these, one clause.
        measured: "measured on your board, 3 networks"; "" for other sources.
    """

    low: float
    high: float
    call_us: tuple[float, float, float]
    basis: str
    measured: str = ""


_OTHERS = Timing(0.5, 2.0, (0.0, 10.0, 100.0), "nothing is published of this chip, so the band is a wide one")
"""Default for chips whose file has no bands."""


def timing_of(chip: Chip | None) -> Timing:
    """Return the bands in the chip's file, or else the default.

    Raises:
        OptionError: `band` or `call_us` of the file are invalid.
    """
    usual = _OTHERS
    if chip is None or chip.npu is None:
        return usual
    band = chip.npu.own.optional_numbers("band", 2)
    call = chip.npu.own.optional_numbers("call_us", 3)
    if band is None and call is None:
        return usual
    low, high = (usual.low, usual.high) if band is None else band
    least, middle, most = usual.call_us if call is None else call
    return Timing(low, high, (least, middle, most), chip.measured or "the band is the chip file's", chip.measured)


@dataclass(frozen=True)
class EthosUNpu:
    """The Ethos-U of a chip.

    Attributes:
        accelerator: Vela's name, such as "ethos-u55-128".
        system_config, memory_mode: sections of the Vela configuration for the chip; "" for the accelerator's defaults.
        base, interrupt: address of its registers and number of its interrupt on the core; None if unknown.
    """

    accelerator: str
    system_config: str = ""
    memory_mode: str = ""
    base: int | None = None
    interrupt: int | None = None

    @classmethod
    def of(cls, chip: Chip) -> EthosUNpu:
        """Return the Ethos-U of a chip that has one.

        Raises:
            OptionError: its section of the chip file is wrong.
        """
        assert chip.npu is not None
        own = chip.npu.fields(
            *("accelerator", "system_config", "memory_mode", "band", "call_us", MEASURED, "base", "interrupt")
        )
        accelerator = find_accelerator(own.text("accelerator"))
        timing_of(chip)
        return cls(
            accelerator.name,
            own.optional_text("system_config"),
            own.optional_text("memory_mode"),
            *(own.optional_integer(name) for name in ("base", "interrupt")),
        )


def areas(chip: Chip) -> dict[str, Memory | None]:
    """Return the chip's memories for Vela's memory areas."""
    memory = chip.memory_for(ACTIVATIONS)
    others = (m for m in chip.memories if m != memory and m.bandwidth is not None)  # such as DRAM
    return {"cache_mem_area": memory, "const_mem_area": chip.memory_for(WEIGHTS) or next(others, None)}


def system_entries(chip: Chip, system_config: str = "", memory_mode: str = "") -> tuple[str, ...]:
    """Return the entries of Vela's system configuration that a chip with a clock overrides.

    Args:
        system_config, memory_mode: default: the chip's, or else the accelerator's.
    """
    npu = EthosUNpu.of(chip)
    assert chip.npu is not None
    accelerator = find_accelerator(npu.accelerator)
    if chip.npu.clock_mhz is None:
        return ()
    return entries_for(
        accelerator,
        system_config or npu.system_config or accelerator.system_config,
        memory_mode or npu.memory_mode or accelerator.memory_mode,
        chip.npu.clock_mhz * 1e6,
        {area: m.bandwidth for area, m in areas(chip).items() if m is not None and m.bandwidth is not None},
    )
