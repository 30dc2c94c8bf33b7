"""Boards for firmware: those that can be emulated, Arm's virtual platform, and Zephyr's boards of a chip.

Emulated are the boards of a table, and chips whose file has the place of their NPU. On Zephyr's boards the RAM is the
core's tightly coupled memory, which the NPU cannot read; pools must be in SRAM. Names of boards and nodes are those of
Zephyr and of ExecuTorch's samples for it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from micronpu.base.errors import OptionError
from micronpu.base.parsing import parse_toml
from micronpu.chips import Chip, shipped_chips
from micronpu.chips.core import USUAL, machine_of
from micronpu.report.codec import decode
from micronpu.targets.ethosu.accelerators import EthosUNpu, accelerators, find_accelerator


@dataclass(frozen=True)
class NpuPlace:
    """Place of a board's NPU: the non-secure address of its registers, and its interrupt."""

    base: int
    irq: int


@dataclass(frozen=True)
class BoardSpec:
    """A board that can be emulated.

    Attributes:
        name: name for the user.
        machine: machine of QEMU.
        npus: places of its NPUs.
        families: generations of Ethos-U that it may have, such as "u55".
        cpuid: value of the core's CPUID register; 0 for QEMU's.
        vectors: address of the image's vector table; None for the machine's default.
        note: differences from the real board.
        usual: its default NPU; "" for the default of its generation.
        aliases: (address for the NPU, address for the core, bytes) of memories at different addresses for both.
    """

    name: str
    title: str
    machine: str
    core: str
    npus: tuple[NpuPlace, ...] = ()
    families: tuple[str, ...] = ()
    cpuid: int = 0
    vectors: int | None = None
    note: str = ""
    usual: str = ""
    aliases: tuple[tuple[int, int, int], ...] = ()


@functools.cache
def boards() -> Mapping[str, BoardSpec]:
    """Return every board by name: of the table, then the chips whose file has a table ``[board]``."""
    text = resources.files("micronpu.board").joinpath("boards.toml").read_text(encoding="utf-8")
    found = {name: decode(BoardSpec, {"name": name, **entry}) for name, entry in parse_toml(text).items()}
    return found | {chip.name: _of_chip(chip) for chip in shipped_chips().values() if chip.board is not None}


def _of_chip(chip: Chip) -> BoardSpec:
    npu, entry = EthosUNpu.of(chip), chip.board
    assert entry is not None
    if npu.base is None or npu.interrupt is None:
        raise OptionError(
            f"The chip file {chip.file or chip.name} has a table [board], and does not say where its NPU is.",
            hint="`base` and `interrupt` in its table [npu]",
        )
    return BoardSpec(
        chip.name,
        chip.title,
        entry.machine,
        chip.core,
        (NpuPlace(npu.base, npu.interrupt),),
        (find_accelerator(npu.accelerator).family,),
        note=entry.note,
        usual=npu.accelerator,
        aliases=tuple((m.npu_address, m.address or 0, m.bytes) for m in chip.memories if m.npu_address),
    )


def find_board(name: str) -> BoardSpec:
    """Return the board of a name."""
    found = boards().get(name)
    if found is None:
        raise OptionError(f"There is no emulated board {name!r}.", hint=f"one of {', '.join(boards())}")
    return found


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


@dataclass(frozen=True)
class ZephyrBoard:
    """A board of Zephyr, and the settings that an application needs in addition to its devicetree and configuration.

    Attributes:
        name: name for `west build -b`.
        sram: label of the memory node that the NPU reads.
        sram_at: its address if several banks of the devicetree are merged; -1 for an unchanged node.
    """

    name: str
    sram: str
    sram_at: int = -1
    has_npu: bool = True

    @property
    def file(self) -> str:
        return self.name.replace("/", "_")


BOARDS = {
    "corstone300": ZephyrBoard("mps3/corstone300/fvp", "isram"),
    "corstone320": ZephyrBoard("mps4/corstone320/fvp", "isram"),
    "alif-e8-he": ZephyrBoard("ensemble_e8_dk/ae822fa0e5597ls0/rtss_he", "sram0", 0x02000000, has_npu=False),
    "alif-e8-hp": ZephyrBoard("ensemble_e8_dk/ae822fa0e5597ls0/rtss_hp", "sram0", 0x02000000, has_npu=False),
}
"""Boards of ExecuTorch's samples for Zephyr, by chip."""


def zephyr_board(chip: Chip | None, accelerator: str) -> ZephyrBoard | None:
    """Return the board of a chip for a program of its NPU; None without one."""
    return BOARDS.get(chip.name) if chip is not None and accelerator else None


@dataclass(frozen=True)
class ZephyrNpu:
    """The NPU of a board whose devicetree does not have it.

    Attributes:
        node: name of its node in the devicetree.
        compatible: its driver in Zephyr.
        option: the option of Zephyr's configuration for its size.
        base, interrupt: address of its registers, and its interrupt; None if the chip's file does not have them.
    """

    node: str
    compatible: str
    option: str
    base: int | None
    interrupt: int | None


def zephyr_npu(board: ZephyrBoard, chip: Chip, accelerator: str) -> ZephyrNpu | None:
    """Return the NPU that a board's files add; None if its devicetree has it."""
    if board.has_npu:
        return None
    npu, size = EthosUNpu.of(chip), accelerator.removeprefix("ethos-").upper().replace("-", "_")
    node = accelerator.rpartition("-")[0].replace("-", "")
    return ZephyrNpu(node, "arm,ethos-u", f"CONFIG_ETHOS_{size}", npu.base, npu.interrupt)
