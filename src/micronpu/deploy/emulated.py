"""The emulated board of a core: start-up, linker script and console of a firmware that runs without a board."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True)
class Machine:
    """A machine of QEMU.

    Attributes:
        name: QEMU's.
        title: the board that it is.
        board: the one of `micronpu board` whose machine it is.
        code, model, data: first address and size of what is run, of programs, and of what is written.
    """

    name: str
    title: str
    board: str
    code: tuple[int, str]
    model: tuple[int, str]
    data: tuple[int, str]


_FPGA = (0, "4M"), (0x21000000, "16M"), (0x20000000, "4M")
MACHINES = (
    # Secure aliases: code in ITCM or SSRAM1, data in SRAM, programs in DDR or PSRAM; QEMU's pages on mps2 and mps3.
    Machine("mps3-an547", "Cortex-M55", "corstone300", (0x10000000, "512K"), (0x70000000, "16M"), (0x31000000, "2M")),
    Machine("mps2-an505", "Cortex-M33", "mps2-an505", (0x10000000, "4M"), (0x80000000, "16M"), (0x38000000, "2M")),
    Machine("mps2-an500", "Cortex-M7", "mps2-an500", (0, "4M"), (0x60000000, "16M"), (0x20000000, "4M")),
    Machine("mps2-an386", "Cortex-M4", "mps2-an386", *_FPGA),
    Machine("mps2-an385", "Cortex-M3", "mps2-an385", *_FPGA),
)
_OF_CORES = {
    "cortex-m55": "mps3-an547",
    "cortex-m33": "mps2-an505",
    "cortex-m7": "mps2-an500",
    "cortex-m4": "mps2-an386",
    "cortex-m3": "mps2-an385",
}
_SOURCES = ("startup.c", "semihosting.c")


def machine_of(core: str) -> Machine | None:
    """The machine with a core, None where QEMU has none."""
    return next((m for m in MACHINES if m.name == _OF_CORES.get(core)), None)


def linker_script(machine: Machine, sections: Iterable[str], header: str) -> str:
    """The linker script.

    Args:
        sections: in which programs stand.
    """
    memories = {"CODE": machine.code, "MODEL": machine.model, "DATA": machine.data}
    words = {name: f"0x{begin:08x}, LENGTH = {size}" for name, (begin, size) in memories.items()}
    programs = " ".join(f"KEEP(*({section}))" for section in sections)
    return _filled("link.ld", HEADER=header, TITLE=machine.title, MACHINE=machine.name, PROGRAMS=programs, **words)


def board_files(core: str, flags: str, sections: Iterable[str], header: str) -> dict[str, str]:
    """The folder `board`, by name; empty where QEMU has no such core."""
    machine = machine_of(core)
    if machine is None:
        return {}
    files: Mapping[str, str] = {
        **{name: _text(name) for name in _SOURCES},
        "link.ld": linker_script(machine, sections, header),
        "toolchain.cmake": _filled("toolchain.cmake", HEADER=header, CORE=core, FLAGS=flags),
    }
    return {f"board/{name}": text for name, text in files.items()}


def _text(name: str) -> str:
    return (resources.files("micronpu.deploy") / "port" / name).read_text(encoding="utf-8")


def _filled(name: str, **words: str) -> str:
    text = _text(f"{name}.in")
    for word, value in words.items():
        text = text.replace(f"@{word}@", value)
    return text
