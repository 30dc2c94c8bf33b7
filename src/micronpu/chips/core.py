"""Cores of the Cortex-M family, as far as CMSIS-NN tells them apart.  Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from micronpu.base.arguments import check_text
from micronpu.base.errors import OptionError


class InstructionSet(Enum):
    """Which of CMSIS-NN's three implementations a core runs; the value is the name that CMSIS-NN gives it."""

    SCALAR = "SCALAR"
    DSP = "DSP"
    MVE = "MVE"


@dataclass(frozen=True)
class Core:
    """A Cortex-M core that runs CMSIS-NN.

    Attributes:
        name: as chip files spell it, such as "cortex-m33".
        instructions: what CMSIS-NN uses of it.  It decides sizes of scratch memory and what a matrix product is given
            beside its weights, so that a program is for one of the three.
        clock_mhz: in the chip that it is part of; None where no chip is known, or its file does not say.
    """

    name: str
    instructions: InstructionSet
    clock_mhz: float | None = None

    @property
    def title(self) -> str:
        """As reports call it."""
        return f"{self.name.title()} (CMSIS-NN)"


# Source: executorch.backends.cortex_m.target_config, CMSIS-NN README.
CORES = {
    core: Core(core, instructions)
    for instructions, names in {
        InstructionSet.SCALAR: ("m0", "m0plus", "m3", "m23"),
        InstructionSet.DSP: ("m4", "m7", "m33", "m35p"),
        InstructionSet.MVE: ("m55", "m85"),
    }.items()
    for core in (f"cortex-{name}" for name in names)
}
"""Every core that CMSIS-NN runs on, by name."""


def is_cortex_m(name: str) -> bool:
    """Whether CMSIS-NN runs on the core of this name."""
    return name in CORES


def runs_linux(name: str) -> bool:
    """Whether the core of this name is one of Arm's for an operating system, which has no bare metal here."""
    return name.startswith("cortex-a")


def find_core(name: str) -> Core:
    """The core of a name such as "cortex-m33".

    Raises:
        OptionError: CMSIS-NN does not run on it.
    """
    check_text("core", name, 'the name of one, such as "cortex-m33"')
    if name not in CORES:
        raise OptionError(f"CMSIS-NN does not run on the core {name!r}.", hint=f"one of {', '.join(sorted(CORES))}")
    return CORES[name]
