"""Logs and images that no board made end in one sentence."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from micronpu.base.errors import FileError
from micronpu.board.elf import Elf
from micronpu.board.gdb import BoardError
from micronpu.board.logs import read_log, read_measurement
from micronpu.cli.probe import log_view

LINES = [
    *("micronpu-run net 0 0 {}", "micronpu-cycles net 0 {}", "micronpu-cycles net {} 1"),
    *("micronpu-run net 0 0 5\nmicronpu-clock {}", "micronpu-run net 0 0 5\nmicronpu-npu-beats net 0 AXI {}"),
    *("Ethos-U PMU report\nethosu_pmu_cycle_cntr : {}", "Profile for net\nNPU TOTAL cycles: {}", "conv took {} ticks"),
    "--- HPX_START ---\nLayer,Op,cycles\n{0},conv,{0}\n--- HPX_END ---",
]
"""A line of every form of log, without a number."""


@pytest.mark.parametrize("digits", [20, 400, 5000])
@pytest.mark.parametrize("lines", LINES)
def test_a_number_that_no_counter_holds_is_a_message(lines, digits):
    ending = "\nPASS: 1 vectors, 0 elements differ\n"
    read_log((lines.format(12) + ending).encode(), "console.txt")
    with pytest.raises(FileError, match=r"log console.txt has a number of more than 64 bits"):
        read_log((lines.format("9" * digits) + ending).encode(), "console.txt")


@pytest.mark.parametrize("kind", ["int8:{}:0", "int8:1:{}"])
def test_a_size_that_no_counter_holds_is_a_message(kind):
    line = f"micronpu-output net 0 0 {kind.format('9' * 400)} 2 0 AAA="
    with pytest.raises(FileError, match="a number of more than 64 bits"):
        log_view(line.encode(), "console.txt")


@pytest.mark.parametrize("key", ["ticks", "times", "number"])
def test_a_number_of_a_measurement_that_no_counter_holds_is_a_message(key):
    row = {"kind": '"run"', "name": '"net"', "number": "-1", "ticks": "1.5", "times": "1"}
    head = 'format = "micronpu measurement"\nversion = 1\nform = "micronpu"\n[[rows]]\n'

    def read(row):
        return read_measurement((head + "".join(f"{k} = {v}\n" for k, v in row.items())).encode(), "m.toml")

    assert read(row).rows[0].ticks == 1.5
    with pytest.raises(FileError, match=r"m\.toml is no measurement: an integer has more than 64 bits"):
        read({**row, key: "9" * 400})


def image(path: Path, address: int, stored: int, needed: int) -> Path:
    """An ELF file for a Cortex-M of one segment."""
    head = struct.pack("<16s2H5I6H", b"\x7fELF\1\1", 2, 40, 1, 0, 52, 0, 0, 52, 32, 1, 40, 0, 0)
    path.write_bytes(head + struct.pack("<8I", 1, 0, address, address, stored, needed, 5, 4) + bytes(stored))
    return path


@pytest.mark.parametrize(
    ("address", "stored", "needed", "sentence"),
    [
        (0, 16, 0xFFFFFFFF, "more than any microcontroller has"),
        (0xFFFFFF00, 16, 0x1000, "no place in memory"),
        (0, 64, 16, "no place in memory"),
    ],
)
def test_an_image_that_takes_all_memory_is_refused(tmp_path, address, stored, needed, sentence):
    with pytest.raises(BoardError, match=sentence):
        Elf.read(image(tmp_path / "a.elf", address, stored, needed))
    assert Elf.read(image(tmp_path / "b.elf", 0x10000000, 16, 1 << 20)).segments[0].memory_size == 1 << 20
