"""The registers of an NPU as a table, and their values: loads, stores, fields and resets.

The table is data (``registers.toml``), from Arm's public driver interface; `micronpu.board.npu` implements stores.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from micronpu.base.parsing import parse_toml
from micronpu.report.codec import decode

PAGE = 0x1000
"""Bytes of the register page."""


@dataclass(frozen=True)
class Register:
    """One register, or an array of them.

    Attributes:
        offset: in the page, in bytes.
        access: "r", "w" or "rw", for the core.
        bits: 32 or 64.
        count, step: number of elements of an array, and bytes from one to the next.
        reset: value after a reset.
        fields: (first bit, bits) by name.
    """

    name: str
    offset: int
    access: str
    bits: int = 32
    count: int = 1
    step: int = 4
    reset: int = 0
    fields: Mapping[str, tuple[int, int]] = field(default_factory=dict, hash=False)

    def pack(self, **values: int) -> int:
        """Return the register's value with these fields."""
        word = 0
        for name, value in values.items():
            first, bits = self.fields[name]
            word |= (value & (1 << bits) - 1) << first
        return word

    def unpack(self, word: int, name: str) -> int:
        first, bits = self.fields[name]
        return word >> first & (1 << bits) - 1


@dataclass(frozen=True)
class Generation:
    """A generation of NPUs.

    Attributes:
        product, architecture, product_major, stream_version: fields of ID and CONFIG.
        address_bits: width of base pointers.
        event_counters: number of event counters of the PMU.
        port_bytes: bytes that an AXI port transfers per cycle.
        inside: bits 8 to 15 of CONFIG by MACs.
        events: numbers of the PMU's events by name.
        registers: by name.
    """

    name: str
    product: int
    architecture: tuple[int, int, int]
    product_major: int
    stream_version: int
    address_bits: int
    event_counters: int
    port_bytes: int
    inside: Mapping[str, int] = field(hash=False)
    events: Mapping[str, tuple[int, ...]] = field(hash=False)
    registers: Mapping[str, Register] = field(hash=False)

    def id_word(self) -> int:
        major, minor, patch = self.architecture
        fields = {"arch_major": major, "arch_minor": minor, "arch_patch": patch, "product_major": self.product_major}
        return self.registers["ID"].pack(**fields, version_status=1)

    def config_word(self, macs: int) -> int:
        fields = {"product": self.product, "stream_version": self.stream_version, "inside": self.inside[str(macs)]}
        return self.registers["CONFIG"].pack(**fields, macs=macs.bit_length() - 1)


@functools.cache
def generations() -> dict[str, Generation]:
    """Return every generation by name, such as "u55"."""
    tables = parse_toml(resources.files("micronpu.board").joinpath("registers.toml").read_text(encoding="utf-8"))
    return {name: _generation(name, tables) for name in tables}


def _generation(name: str, tables: Mapping[str, Any]) -> Generation:
    own = tables[name]
    under = tables.get(own.get("extends"), {})
    entries = {**under.get("registers", {}), **own.get("registers", {})}
    registers = {key: {"name": key, **entry} for key, entry in entries.items()}
    return decode(Generation, {**under, **own, "name": name, "registers": registers})


class RegisterFile:
    """The values of all registers.

    Words without a register keep their stored value: a driver may know registers that the table lacks.
    """

    def __init__(self, generation: Generation) -> None:
        self.generation = generation
        self._words: dict[int, int] = {}
        self._known: dict[int, tuple[str, str]] = {}  # name and access of a word
        for register in generation.registers.values():
            for number in range(register.count):
                for half in range(register.bits // 32):
                    index = f"[{number}]" if register.count > 1 else ""
                    name = register.name + index + ("_HI" if half else "")
                    self._known[register.offset + number * register.step + 4 * half] = name, register.access
        self.reset()

    def reset(self) -> None:
        self._words = {}
        for register in self.generation.registers.values():
            for number in range(register.count):
                self.set(register.name, register.reset, number)

    def name_at(self, offset: int) -> str:
        """Return the name of the register at an offset, such as "BASEP[1]"; "" if there is none."""
        return self._known.get(offset, ("", ""))[0]

    def load(self, offset: int) -> int:
        """Return the value that the core reads from a word."""
        return self._words.get(offset, 0) if "r" in self._known.get(offset, ("", "rw"))[1] else 0

    def store(self, offset: int, value: int) -> bool:
        """Store a word of the core; return False if it must not write there."""
        if "w" not in self._known.get(offset, ("", "rw"))[1]:
            return False
        self._words[offset] = value & 0xFFFFFFFF
        return True

    def get(self, name: str, number: int = 0) -> int:
        """Return the value of a register, of 32 or 64 bits."""
        register = self.generation.registers[name]
        at = register.offset + number * register.step
        low = self._words.get(at, 0)
        return low | self._words.get(at + 4, 0) << 32 if register.bits == 64 else low

    def set(self, name: str, value: int, number: int = 0) -> None:
        register = self.generation.registers[name]
        at = register.offset + number * register.step
        self._words[at] = value & 0xFFFFFFFF
        if register.bits == 64:
            self._words[at + 4] = value >> 32 & 0xFFFFFFFF

    def field(self, name: str, field: str) -> int:
        return self.generation.registers[name].unpack(self.get(name), field)

    def set_fields(self, name: str, **values: int) -> None:
        """Change fields of a register, and keep the others."""
        register, word = self.generation.registers[name], self.get(name)
        for key in values:
            first, bits = register.fields[key]
            word &= ~((1 << bits) - 1 << first)
        self.set(name, word | register.pack(**values))
