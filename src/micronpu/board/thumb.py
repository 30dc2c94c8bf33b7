"""Decoder for loads and stores of a Cortex-M: registers and addresses of an access.

Source of the encodings: Armv8-M Architecture Reference Manual, DDI 0553, C2.4.

The package capstone decodes them as well. It is not used, because it is a native library of 11 MB, and computing
address, width, sign and writeback from its operands would take about half of this module.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from micronpu.board.gdb import BoardError

_IT = 0x0600FC00
"""Bits of xPSR with the state of an IT block."""


@dataclass(frozen=True)
class Access:
    """A load or store.

    Attributes:
        is_load: True if it reads memory.
        registers: the transferred registers, in order of their addresses.
        address: of the first.
        width: bytes of each: 1, 2 or 4.
        signed: True if a load extends the sign.
        length: bytes of the instruction.
        writeback: (register, value) that the instruction also sets: its base, or the status of an exclusive store.
    """

    is_load: bool
    registers: tuple[int, ...]
    address: int
    width: int
    signed: bool
    length: int
    writeback: tuple[int, int] | None = None

    def loaded(self, value: int) -> int:
        """Return a register's value after a load of these bytes."""
        value &= (1 << 8 * self.width) - 1
        if self.signed and value >> (8 * self.width - 1):
            value -= 1 << 8 * self.width
        return value & 0xFFFFFFFF


def decode(code: bytes, registers: Sequence[int]) -> Access:
    """Return the access of an instruction."""
    one, two = struct.unpack("<HH", code)
    found = _wide(one, two, registers) if one >> 11 in (0b11101, 0b11110, 0b11111) else _narrow(one, registers)
    if found is None:
        raise BoardError(
            f"The instruction {one:04x} {two:04x} at {registers[15]:#x} accesses the NPU's registers in a way that the "
            "emulated board does not know.",
            hint="loads and stores of words, halfwords, bytes, several registers or exclusive ones",
        )
    return found


_OFFSETS = {0b000: (4, False, False), 0b001: (2, False, False), 0b010: (1, False, False), 0b011: (1, True, True)}
_OFFSETS |= {0b100: (4, True, False), 0b101: (2, True, False), 0b110: (1, True, False), 0b111: (2, True, True)}
"""Properties of the 16-bit form with a register offset: width, load, signed, by bits 9 to 11."""


def _narrow(one: int, r: Sequence[int]) -> Access | None:
    rn, rt, by = one >> 3 & 7, one & 7, one >> 6 & 31
    load = bool(one & 0x0800)
    match one >> 12:
        case 0b0110:
            return Access(load, (rt,), _sum(r[rn], by * 4), 4, False, 2)
        case 0b0111:
            return Access(load, (rt,), _sum(r[rn], by), 1, False, 2)
        case 0b1000:
            return Access(load, (rt,), _sum(r[rn], by * 2), 2, False, 2)
        case 0b0101:
            width, load, signed = _OFFSETS[one >> 9 & 7]
            return Access(load, (rt,), _sum(r[rn], r[one >> 6 & 7]), width, signed, 2)
        case 0b1001:
            return Access(load, (one >> 8 & 7,), _sum(r[13], (one & 255) * 4), 4, False, 2)
        case 0b1100:
            base, chosen = one >> 8 & 7, _chosen(one & 255)
            # A load into the base register overrides its writeback.
            moved = None if load and base in chosen else (base, _sum(r[base], 4 * len(chosen)))
            return Access(load, chosen, r[base], 4, False, 2, moved)
    return None


def _wide(one: int, two: int, r: Sequence[int]) -> Access | None:
    rn, rt = one & 15, two >> 12
    load = bool(one & 0x10)
    if one & 0xFE00 == 0xF800:
        return _single(one, two, r, rn, rt, load)
    if one & 0xFE40 == 0xE800 and one & 0x0180 in (0x0080, 0x0100):
        return _several(one, two, r, rn, load)
    if one & 0xFE40 == 0xE840 and one & 0x0120:
        change = (two & 255) * 4
        return _indexed(load, (rt, two >> 8 & 15), r, rn, change, bool(one & 0x100), bool(one & 0x80), bool(one & 0x20))
    if one & 0xFFE0 == 0xE840:  # LDREX, STREX; the store always succeeds: there is one core
        status = None if load else (two >> 8 & 15, 0)
        return Access(load, (rt,), _sum(r[rn], (two & 255) * 4), 4, False, 4, status)
    if one & 0xFFE0 == 0xE8C0:
        return _ordered(two, r[rn], rt, load)
    return None


def _single(one: int, two: int, r: Sequence[int], rn: int, rt: int, load: bool) -> Access | None:
    size, signed = one >> 5 & 3, bool(one & 0x100)
    if size == 3 or (signed and (not load or size == 2)):
        return None
    width = 1 << size
    if rn == 15:
        change = two & 0xFFF
        base = (r[15] + 4) & ~3
        return Access(load, (rt,), _sum(base, change if one & 0x80 else -change), width, signed, 4)
    if one & 0x80:
        return Access(load, (rt,), _sum(r[rn], two & 0xFFF), width, signed, 4)
    if not two & 0xFC0:
        return Access(load, (rt,), _sum(r[rn], r[two & 15] << (two >> 4 & 3)), width, signed, 4)
    if not two & 0x800:
        return None
    before, up, writes = (bool(two & bit) for bit in (0x400, 0x200, 0x100))
    return _indexed(load, (rt,), r, rn, two & 255, before, up, writes, width, signed)


def _indexed(
    load: bool,
    chosen: tuple[int, ...],
    r: Sequence[int],
    rn: int,
    change: int,
    before: bool,
    up: bool,
    writes: bool,
    width: int = 4,
    signed: bool = False,
) -> Access:
    moved = _sum(r[rn], change if up else -change)
    kept = (rn, moved) if writes or not before else None
    return Access(load, chosen, moved if before else r[rn], width, signed, 4, kept)


def _several(one: int, two: int, r: Sequence[int], rn: int, load: bool) -> Access:
    chosen = _chosen(two)
    down = one & 0x0180 == 0x0100
    moved = _sum(r[rn], -4 * len(chosen) if down else 4 * len(chosen))
    kept = (rn, moved) if one & 0x20 and not (load and rn in chosen) else None
    return Access(load, chosen, moved if down else r[rn], 4, False, 4, kept)


_ORDERED = {0x8: (1, False), 0x9: (2, False), 0xA: (4, False)}
_ORDERED |= {0xC: (1, True), 0xD: (2, True), 0xE: (4, True), 0x4: (1, True), 0x5: (2, True)}
"""Load-acquire and store-release, and the exclusive forms: width, and whether a store sets a status."""


def _ordered(two: int, address: int, rt: int, load: bool) -> Access | None:
    kind = _ORDERED.get(two >> 4 & 15)
    if kind is None:
        return None
    width, exclusive = kind
    status = (two & 15, 0) if exclusive and not load else None
    return Access(load, (rt,), address, width, False, 4, status)


def _chosen(bits: int) -> tuple[int, ...]:
    return tuple(i for i in range(16) if bits >> i & 1)


def _sum(left: int, right: int) -> int:
    return (left + right) & 0xFFFFFFFF


def after_one(xpsr: int) -> int:
    """Return xPSR after one more instruction of an IT block, if there is one."""
    state = (xpsr >> 25 & 3) | (xpsr >> 8 & 0xFC)
    state = 0 if state & 7 == 0 else (state & 0xE0) | (state << 1 & 0x1F)
    return xpsr & ~_IT | (state & 3) << 25 | (state & 0xFC) << 8


def without_block(xpsr: int) -> int:
    """Return xPSR outside of any IT block."""
    return xpsr & ~_IT
