"""Platforms for a deployed application without a board: an emulated board, and Arm's virtual platform."""

from __future__ import annotations

from micronpu.board.boards import BoardSpec, boards
from micronpu.chips.core import USUAL
from micronpu.chips.machines import machine_of
from micronpu.targets.ethosu.accelerators import accelerators


def core_of(core: str) -> str:
    """Return the core of a folder's start-up code: the default one if the chip is unknown."""
    return core or USUAL.name


def emulated_board(core: str, accelerator: str) -> BoardSpec | None:
    """Return a board that QEMU emulates, with the core and the NPU; None without one.

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
    """Return the command that runs the emulated Corstone-300's application on Arm's FVP; nothing for other boards."""
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
