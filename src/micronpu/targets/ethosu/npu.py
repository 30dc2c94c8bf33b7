"""The Ethos-U section of a chip file."""

from __future__ import annotations

from dataclasses import dataclass

from micronpu.chips import Chip
from micronpu.targets.ethosu.accelerators import find_accelerator
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
        own = chip.npu.fields("accelerator", "system_config", "memory_mode", "band", "call_us", "base", "interrupt")
        accelerator = find_accelerator(own.text("accelerator"))
        timing_of(chip)
        return cls(
            accelerator.name,
            own.optional_text("system_config"),
            own.optional_text("memory_mode"),
            *(own.optional_integer(name) for name in ("base", "interrupt")),
        )
