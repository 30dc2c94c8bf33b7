"""QEMU machines by core: addresses of code, programs and data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class QemuMachine:
    """A machine of QEMU.

    Attributes:
        name: QEMU's.
        core: one that CMSIS-NN supports, such as "cortex-m33".
        board: the one of `micronpu board` that runs on it.
        code, model, data: first address and size of the code, of programs, and of writable data.
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
