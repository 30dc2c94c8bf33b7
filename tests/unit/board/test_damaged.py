"""Logs and images that no board made end in one sentence."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from micronpu.base.errors import FileError
from micronpu.board.elf import Elf
from micronpu.board.gdb import BoardError
from micronpu.board.logs import read_log
from micronpu.cli.probe import log_view

LONG = b"9" * 5000


@pytest.mark.parametrize("line", [b"micronpu-run net 0 0 %s", b"micronpu-cycles net 0 %s", b"micronpu-run net %s 0 12"])
@pytest.mark.parametrize("read", [read_log, log_view])
def test_a_number_of_thousands_of_digits_is_a_sentence(read, line):
    with pytest.raises(FileError):
        read(line % LONG + b"\n", "console.txt")


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
