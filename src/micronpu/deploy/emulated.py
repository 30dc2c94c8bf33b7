"""Files for the emulated board of a core: start-up code, linker script and console of a firmware."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import resources

from micronpu.board.platforms import core_of
from micronpu.chips.machines import QemuMachine, machine_of

_SOURCES = ("startup.c", "semihosting.c")


def linker_script(machine: QemuMachine, sections: Iterable[str], header: str, *, resident: bool = False) -> str:
    """Return the linker script.

    Args:
        sections: of the programs.
        resident: programs are stored with the code, and copied into the memory for activations at the start.
    """
    memories = {"CODE": machine.code, "MODEL": machine.model, "DATA": machine.data}
    words = {name: f"0x{begin:08x}, LENGTH = {size}" for name, (begin, size) in memories.items()}
    words["PLACE"] = "DATA AT > MODEL" if resident else "MODEL"
    programs = " ".join(f"KEEP(*({section}))" for section in sections)
    return _filled("link.ld", HEADER=header, TITLE=machine.title, MACHINE=machine.name, PROGRAMS=programs, **words)


def board_files(
    core: str, flags: str, sections: Iterable[str], header: str, *, resident: bool = False
) -> dict[str, str]:
    """Return the files of the folder `board`, by name; empty if QEMU has no such core."""
    core = core_of(core)
    machine = machine_of(core)
    if machine is None:
        return {}
    files: Mapping[str, str] = {
        **{name: _text(name) for name in _SOURCES},
        "link.ld": linker_script(machine, sections, header, resident=resident),
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
