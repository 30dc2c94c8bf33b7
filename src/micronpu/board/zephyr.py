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


def board_files(chip: Chip | None, accelerator: str, header: str) -> dict[str, str]:
    """Return overlay and configuration of the chip's board, by name in the folder; empty without one."""
    board = zephyr_board(chip, accelerator)
    if board is None or chip is None:
        return {}
    place = f"zephyr/boards/{board.file}"
    files = {f"{place}.overlay": _overlay(board, chip, accelerator, header)}
    if not board.has_npu:
        size = accelerator.removeprefix("ethos-").upper().replace("-", "_")
        why = "# The size of the NPU, which the board's devicetree does not say."
        files[f"{place}.conf"] = f"# {header}\n{why}\nCONFIG_ETHOS_{size}=y\n"
    return files


def _overlay(board: ZephyrBoard, chip: Chip, accelerator: str, header: str) -> str:
    lines = [
        f"/* {header}",
        " * Pools and data in the SRAM, which the NPU reads: the board's own choice is the core's memory.",
        " */",
    ]
    if board.sram_at >= 0:
        size = next(memory.bytes for memory in chip.memories if memory.name == "sram")
        lines += [
            f"/delete-node/ &{board.sram};",
            "/delete-node/ &sram1;",
            "",
            "&soc {",
            *_npu(board, chip, accelerator),
            f"\t{board.sram}: sram@{board.sram_at:x} {{ /* both banks, which are one behind the other */",
            '\t\tcompatible = "zephyr,memory-region", "mmio-sram";',
            f"\t\treg = <0x{board.sram_at:08x} 0x{size:x}>;",
            f'\t\tzephyr,memory-region = "{board.sram.upper()}";',
            "\t};",
            "};",
            "",
        ]
    return "\n".join([*lines, "/ {", "\tchosen {", f"\t\tzephyr,sram = &{board.sram};", "\t};", "};"]) + "\n"


def _npu(board: ZephyrBoard, chip: Chip, accelerator: str) -> list[str]:
    npu = EthosUNpu.of(chip)
    if board.has_npu or npu.base is None or npu.interrupt is None:
        return []
    return [
        f"\tnpu: {accelerator.rpartition('-')[0].replace('-', '')}@{npu.base:x} {{",
        '\t\tcompatible = "arm,ethos-u";',
        f"\t\treg = <0x{npu.base:08x} 0x1000>;",
        "\t\tinterrupt-parent = <&nvic>;",
        f"\t\tinterrupts = <{npu.interrupt} 0>;",
        "\t\tsecure-enable;",
        "\t\tprivilege-enable;",
        '\t\tstatus = "okay";',
        "\t};",
        "",
    ]
