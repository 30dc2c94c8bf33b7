"""The emulated board of a core: start-up, linker script and console of a firmware that runs without a board."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import resources

from micronpu.board.boards import BoardSpec, boards
from micronpu.chips.core import USUAL
from micronpu.chips.machines import Machine, machine_of
from micronpu.targets.ethosu.accelerators import accelerators

_SOURCES = ("startup.c", "semihosting.c")


def linker_script(machine: Machine, sections: Iterable[str], header: str, *, resident: bool = False) -> str:
    """The linker script.

    Args:
        sections: in which programs stand.
        resident: they are stored with the code, and copied into the memory of tensors at the start.
    """
    memories = {"CODE": machine.code, "MODEL": machine.model, "DATA": machine.data}
    words = {name: f"0x{begin:08x}, LENGTH = {size}" for name, (begin, size) in memories.items()}
    words["PLACE"] = "DATA AT > MODEL" if resident else "MODEL"
    programs = " ".join(f"KEEP(*({section}))" for section in sections)
    return _filled("link.ld", HEADER=header, TITLE=machine.title, MACHINE=machine.name, PROGRAMS=programs, **words)


def core_of(core: str) -> str:
    """The core whose start-up code a folder has: the usual one where the chip is not known."""
    return core or USUAL.name


def emulated_board(core: str, accelerator: str) -> BoardSpec | None:
    """A board with a machine of QEMU that has the core, and the NPU beside it; None where there is none.

    Args:
        accelerator: "" for none, or one that is called from another machine.
    """
    machine = machine_of(core_of(core))
    if machine is None:
        return None
    found = accelerators().get(accelerator)
    fitting = [
        board
        for board in boards().values()
        if board.machine == machine.name and not board.aliases and (found is None or found.family in board.families)
    ]
    return next((board for board in fitting if board.name == machine.board), next(iter(fitting), None))


_FVP = {"": "Ethos-U55", "u55": "Ethos-U55", "u65": "Ethos-U65"}


def fvp_lines(core: str, accelerator: str, application: str) -> list[str]:
    """The command that runs the application of the emulated Corstone-300 on Arm's FVP of it; none for another board."""
    machine, found = machine_of(core_of(core)), accelerators().get(accelerator)
    family = found.family if found is not None else ""
    if machine is None or machine.board != "corstone300" or family not in _FVP:
        return []
    macs = f" -C ethosu.num_macs={found.macs * found.cores}" if found is not None else ""
    return [
        f"FVP_Corstone_SSE-300_{_FVP[family]} -a {application}{macs} --timelimit 600 \\",
        "  -C cpu0.semihosting-enable=1 -C mps3_board.visualisation.disable-visualisation=1 \\",
        "  -C mps3_board.telnetterminal0.start_telnet=0",
    ]


def board_files(
    core: str, flags: str, sections: Iterable[str], header: str, *, resident: bool = False
) -> dict[str, str]:
    """The folder `board`, by name; empty where QEMU has no such core."""
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
