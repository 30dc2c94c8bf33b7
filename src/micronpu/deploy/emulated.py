"""Files for the emulated board of a core: start-up code, linker script and console of a firmware."""

from __future__ import annotations

from collections.abc import Iterable

from micronpu.board.platforms import core_of
from micronpu.chips.machines import QemuMachine, machine_of
from micronpu.deploy.csource import rendered, text_of

_SOURCES = ("startup.c", "semihosting.c")


def linker_script(machine: QemuMachine, sections: Iterable[str], header: str, *, resident: bool = False) -> str:
    """Return the linker script.

    Args:
        sections: of the programs.
        resident: programs are stored with the code, and copied into the memory for activations at the start.
    """
    memories = {"CODE": machine.code, "MODEL": machine.model, "DATA": machine.data}
    return rendered(
        text_of("port/link.ld.in"),
        HEADER=header,
        machine=machine,
        memories=memories,
        sections=list(sections),
        resident=resident,
    )


def board_files(
    core: str, flags: str, sections: Iterable[str], header: str, *, resident: bool = False
) -> dict[str, str]:
    """Return the files of the folder `board`, by name; empty if QEMU has no such core."""
    core = core_of(core)
    machine = machine_of(core)
    if machine is None:
        return {}
    return {f"board/{name}": text_of(f"port/{name}") for name in _SOURCES} | {
        "board/link.ld": linker_script(machine, sections, header, resident=resident),
        "board/toolchain.cmake": rendered(text_of("port/toolchain.cmake.in"), HEADER=header, CORE=core, FLAGS=flags),
    }
