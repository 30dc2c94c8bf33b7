"""The Ethos-U section of a chip file."""

from __future__ import annotations

from dataclasses import dataclass

from micronpu.chips import ACTIVATIONS, MEASURED, WEIGHTS, Chip, Memory
from micronpu.targets.ethosu.accelerators import entries_for, find_accelerator
from micronpu.targets.ethosu.timing import timing_of


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
