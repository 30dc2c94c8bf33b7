"""Where the application of a deployed folder runs without a board: an emulated board, and Arm's virtual platform."""

from __future__ import annotations

from micronpu.board.boards import BoardSpec, boards
from micronpu.chips.core import USUAL
from micronpu.chips.machines import machine_of
from micronpu.targets.ethosu.accelerators import accelerators


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
