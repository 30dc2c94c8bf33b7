"""Cortex-M cores as distinguished by CMSIS-NN, and QEMU's machines with them. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from micronpu.base.arguments import check_text, check_type
from micronpu.base.errors import OptionError


class InstructionSet(Enum):
    """CMSIS-NN's three implementations; the value is CMSIS-NN's name."""

    SCALAR = "SCALAR"
    DSP = "DSP"
    MVE = "MVE"


@dataclass(frozen=True)
class Core:
    """A Cortex-M core that runs CMSIS-NN.

    Attributes:
        name: as chip files spell it, such as "cortex-m33".
        instructions: those that CMSIS-NN uses. They decide scratch sizes and additional inputs of matrix products, so a
            program is for one of the three.
        clock_mhz: in its chip; None if unknown.
    """

    name: str
    instructions: InstructionSet
    clock_mhz: float | None = None

    @property
    def flags(self) -> str:
        """Options of gcc for the core, besides ``-mthumb``."""
        usual = CORES[self.name].instructions
        without = _WITHOUT[usual] if self.instructions is not usual else ""
        return " ".join((f"-mcpu={self.name}{without}", *_FLOATS.get(self.name, "").split()))

    @property
    def title(self) -> str:
        """Name in reports."""
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
"""Every core that CMSIS-NN supports, by name."""
_LEFT_OUT = {
    "cortex-m33": InstructionSet.SCALAR,
    "cortex-m35p": InstructionSet.SCALAR,
    "cortex-m55": InstructionSet.DSP,
    "cortex-m85": InstructionSet.DSP,
}
"""Instructions of cores without their optional extensions. Source: Arm's technical reference manuals."""
_WITHOUT = {InstructionSet.DSP: "+nodsp", InstructionSet.MVE: "+nomve"}
"""Suffix of gcc's ``-mcpu`` for a core without an extension that its name implies."""

_FLOATS = {
    **dict.fromkeys(("cortex-m4",), "-mfloat-abi=hard -mfpu=fpv4-sp-d16"),
    **dict.fromkeys(("cortex-m7",), "-mfloat-abi=hard -mfpu=fpv5-d16"),
    **dict.fromkeys(("cortex-m33", "cortex-m35p"), "-mfloat-abi=hard -mfpu=fpv5-sp-d16"),
    **dict.fromkeys(("cortex-m55", "cortex-m85"), "-mfloat-abi=hard"),
}
"""gcc's options for the floating-point unit; cores that are missing have none."""
USUAL = CORES["cortex-m55"]
"""Default core for sources if no chip is known."""
ANY = "a Cortex-M"
"""Placeholder for an unknown core in texts."""


def runs_cmsis_nn(name: str) -> bool:
    """True if CMSIS-NN supports the core."""
    return name in CORES


def runs_linux(name: str) -> bool:
    """True if this is one of Arm's application cores, which have no bare-metal support here."""
    return name.startswith("cortex-a")


def find_core(name: str, instructions: str = "") -> Core:
    """Return the core of a name such as "cortex-m33".

    Args:
        instructions: "SCALAR", "DSP" or "MVE" for a core without an optional extension; default: what most cores of the
            name have.

    Raises:
        OptionError: CMSIS-NN does not support it, or it cannot have these instructions.
    """
    check_text("core", name, 'the name of one, such as "cortex-m33"')
    if name not in CORES:
        raise OptionError(f"CMSIS-NN does not run on the core {name!r}.", hint=f"one of {', '.join(sorted(CORES))}")
    core = CORES[name]
    check_type("instructions", instructions, str, hint='"SCALAR", "DSP" or "MVE"')
    if not instructions:
        return core
    able = [core.instructions.value, *([_LEFT_OUT[name].value] if name in _LEFT_OUT else [])]
    if instructions not in able:
        raise OptionError(
            f"A {name.title()} cannot have {instructions!r} as the instructions that CMSIS-NN uses of it.",
            hint=" or ".join(able),
        )
    return replace(core, instructions=InstructionSet(instructions))


@dataclass(frozen=True)
class QemuMachine:
    """A machine of QEMU with a core that CMSIS-NN supports, and the board of `micronpu board` that runs on it.

    Code, programs and writable data have a first address and a size.
    """

    name: str
    core: str
    board: str
    code: tuple[int, str]
    model: tuple[int, str]
    data: tuple[int, str]

    @property
    def title(self) -> str:
        """Name of the core for people."""
        return self.core.title()


_FPGA = (0, "4M"), (0x21000000, "16M"), (0x20000000, "4M")
MACHINES = (
    # Secure aliases: code in ITCM or SSRAM1, data in SRAM, programs in DDR or PSRAM; QEMU's pages on mps2 and mps3.
    QemuMachine(
        "mps3-an547", "cortex-m55", "corstone300", (0x10000000, "512K"), (0x70000000, "16M"), (0x31000000, "2M")
    ),
    QemuMachine("mps2-an505", "cortex-m33", "mps2-an505", (0x10000000, "4M"), (0x80000000, "16M"), (0x38000000, "2M")),
    QemuMachine("mps2-an500", "cortex-m7", "mps2-an500", (0, "4M"), (0x60000000, "16M"), (0x20000000, "4M")),
    QemuMachine("mps2-an386", "cortex-m4", "mps2-an386", *_FPGA),
    QemuMachine("mps2-an385", "cortex-m3", "mps2-an385", *_FPGA),
)


def machine_of(core: str) -> QemuMachine | None:
    """Return the machine with a core; None if QEMU has none."""
    return next((m for m in MACHINES if m.core == core), None)
