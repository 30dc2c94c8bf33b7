"""Zephyr's boards of a chip: settings that an application needs in addition to the board's devicetree and
configuration.

On these boards Zephyr's RAM is the core's tightly coupled memory, which the NPU cannot read; pools must be in SRAM.
Names of boards and nodes are those of Zephyr and of ExecuTorch's samples for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from micronpu.chips import Chip
from micronpu.targets.ethosu.npu import EthosUNpu


@dataclass(frozen=True)
class ZephyrBoard:
    """A board.

    Attributes:
        name: name for `west build -b`.
        sram: label of the memory node that the NPU reads.
        sram_at: its address if several banks of the devicetree are merged; -1 for an unchanged node.
        has_npu: True if the devicetree has the NPU.
    """

    name: str
    sram: str
    sram_at: int = -1
    has_npu: bool = True

    @property
    def file(self) -> str:
        """Name of its files in a folder `boards`."""
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
