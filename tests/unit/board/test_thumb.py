"""Loads and stores of a Cortex-M, taken apart: encodings are what GNU's assembler writes for the text beside them."""

from __future__ import annotations

import struct

import pytest

from micronpu.board.gdb import BoardError
from micronpu.board.thumb import after_one, decode

R = [0x100 * i for i in range(16)]

ROWS = [
    # text, halfwords, load, registers, address, width, signed, writeback
    ("ldr r0, [r1, #4]", (0x6848,), True, (0,), 0x104, 4, False, None),
    ("str r0, [r1, #4]", (0x6048,), False, (0,), 0x104, 4, False, None),
    ("ldrb r2, [r3, #1]", (0x785A,), True, (2,), 0x301, 1, False, None),
    ("strh r2, [r3, #6]", (0x80DA,), False, (2,), 0x306, 2, False, None),
    ("ldrsh r0, [r1, r2]", (0x5E88,), True, (0,), 0x300, 2, True, None),
    ("ldrsb r0, [r1, r2]", (0x5688,), True, (0,), 0x300, 1, True, None),
    ("strb r0, [r1, r2]", (0x5488,), False, (0,), 0x300, 1, False, None),
    ("ldr r1, [sp, #8]", (0x9902,), True, (1,), 0xD08, 4, False, None),
    ("ldmia r2!, {r0, r3}", (0xCA09,), True, (0, 3), 0x200, 4, False, (2, 0x208)),
    ("ldmia r2, {r0, r2}", (0xCA05,), True, (0, 2), 0x200, 4, False, None),
    ("stmia r2!, {r0, r3}", (0xC209,), False, (0, 3), 0x200, 4, False, (2, 0x208)),
    ("ldr.w r8, [r9, #0x123]", (0xF8D9, 0x8123), True, (8,), 0xA23, 4, False, None),
    ("strb.w r8, [r9, #1]", (0xF889, 0x8001), False, (8,), 0x901, 1, False, None),
    ("ldrsh.w r8, [r9, #2]", (0xF9B9, 0x8002), True, (8,), 0x902, 2, True, None),
    ("ldr r0, [r1], #-4", (0xF851, 0x0904), True, (0,), 0x100, 4, False, (1, 0xFC)),
    ("str r0, [r1, #-4]!", (0xF841, 0x0D04), False, (0,), 0xFC, 4, False, (1, 0xFC)),
    ("ldr r0, [r1, #-8]", (0xF851, 0x0C08), True, (0,), 0xF8, 4, False, None),
    ("ldr.w r0, [r1, r2, lsl #2]", (0xF851, 0x0022), True, (0,), 0x900, 4, False, None),
    ("ldrd r0, r1, [r2, #8]", (0xE9D2, 0x0102), True, (0, 1), 0x208, 4, False, None),
    ("strd r0, r1, [r2], #-16", (0xE862, 0x0104), False, (0, 1), 0x200, 4, False, (2, 0x1F0)),
    ("ldmdb r4!, {r0, r1, r8}", (0xE934, 0x0103), True, (0, 1, 8), 0x3F4, 4, False, (4, 0x3F4)),
    ("stmia.w r8, {r0, r1}", (0xE888, 0x0003), False, (0, 1), 0x800, 4, False, None),
    ("ldrex r0, [r1, #4]", (0xE851, 0x0F01), True, (0,), 0x104, 4, False, None),
    ("strex r2, r0, [r1, #4]", (0xE841, 0x0201), False, (0,), 0x104, 4, False, (2, 0)),
    ("ldrexb r0, [r1]", (0xE8D1, 0x0F4F), True, (0,), 0x100, 1, False, None),
    ("lda r0, [r1]", (0xE8D1, 0x0FAF), True, (0,), 0x100, 4, False, None),
    ("stl r0, [r1]", (0xE8C1, 0x0FAF), False, (0,), 0x100, 4, False, None),
    ("stlex r2, r0, [r1]", (0xE8C1, 0x0FE2), False, (0,), 0x100, 4, False, (2, 0)),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_access(row: tuple) -> None:
    _, halfwords, load, registers, address, width, signed, writeback = row
    code = struct.pack(f"<{len(halfwords)}H", *halfwords) + b"\xff" * (4 - 2 * len(halfwords))
    found = decode(code, R)
    assert (found.is_load, found.registers, found.address) == (load, registers, address)
    assert (found.width, found.signed, found.writeback) == (width, signed, writeback)
    assert found.length == 2 * len(halfwords)


def test_signs() -> None:
    assert decode(struct.pack("<2H", 0x5688, 0), R).loaded(0x80) == 0xFFFFFF80
    assert decode(struct.pack("<2H", 0x785A, 0), R).loaded(0x180) == 0x80


@pytest.mark.parametrize("halfwords", [(0x4608, 0), (0xED91, 0x0A00), (0xF8DF, 0xF000), (0xB500, 0)])
def test_what_is_no_access_of_core_registers(halfwords: tuple[int, int]) -> None:
    code = struct.pack("<2H", *halfwords)
    if halfwords == (0xF8DF, 0xF000):  # ldr pc, [pc, #0]: an access all the same
        assert decode(code, R).registers == (15,)
        return
    with pytest.raises(BoardError, match="in a way that the emulated board does not know"):
        decode(code, R)


def test_block_of_conditions() -> None:
    # ITTE: condition and mask 0b1010 become 0b0100, then 0b1000, then none.
    def packed(state: int) -> int:
        return (state & 3) << 25 | (state & 0xFC) << 8

    assert after_one(packed(0b0000_1010)) == packed(0b0001_0100 & 0x1F)
    assert after_one(packed(0b0000_0100)) == packed(0b0000_1000)
    assert after_one(packed(0b0000_1000) | 1 << 24) == 1 << 24
