"""Read a command stream without running it, and write it. Standard library only.

    SET IFM_BASE ..  SET WEIGHT_BASE ..  CONV  SET WEIGHT_BASE ..  CONV
    (CONV, {IFM_BASE, WEIGHT_BASE}), (CONV, {IFM_BASE, WEIGHT_BASE'})

A register keeps its value across operations, so a stream sets only changed values. As actions with the values of their
registers, operations can be moved, modified and inserted; the written stream sets only registers that differ.

Source: the driver actions of Arm's public Ethos-U core driver, and the configuration register of the manuals.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from micronpu.container.payload import bad_payload
from micronpu.targets.ethosu import registers as reg
from micronpu.targets.ethosu.accelerators import accelerators

STREAM_IDENTIFIERS = 1 << 20
"""First identifier of a stream's operations in a debug handle map; smaller ones belong to the flatbuffer."""

_COP1, _COP2 = b"COP1", b"COP2"
_CONFIG, _STREAM, _NOP = 1, 2, 5
_CONFIG_OF_COP2 = 10
"""Index of the configuration word, after ten words of header, entry and metadata."""
GENERATIONS = ("u55", "u65", "u85")
"""Families by the product in bits 28 to 31 of the configuration register."""
_HAS_VALUE, _CODE = 0x4000, 0x3FF
KERNELS = (reg.CONVOLUTION, reg.DEPTHWISE, reg.POOL, reg.ELEMENTWISE, reg.RESIZE)
_FIRST_REGISTER = 0x100
_TRANSFER_SMALL, _TRANSFER_LARGE = range(0x130, 0x140), range(0x030, 0x040)
"""Codes of the registers that only transfers read, without and with a second word."""
_SPARSE = 0x10
"""Flag in the format of weights, U85 only: 2:4 sparse."""

Register = tuple[bool, int]
"""True if it has a second word, and its code."""
Value = tuple[int, int | None]
"""Parameter, and the second word if there is one."""


def _words(commands: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(commands) // 4}I", commands[: len(commands) // 4 * 4])


def configuration_of(commands: bytes) -> int:
    """The configuration word of a stream: product in the upper 4 bits, log2 of the MACs in the lower 4."""
    words = _words(commands)
    if commands[:4] == _COP2 and len(words) > _CONFIG_OF_COP2:
        return words[_CONFIG_OF_COP2]
    at = 1
    while commands[:4] == _COP1 and at < len(words):
        action = words[at] & 0xFF
        if action == _CONFIG and at + 1 < len(words):
            return words[at + 1]
        if action != _NOP:
            break
        at += 1
    raise bad_payload("The driver actions of the Ethos-U command stream do not say which accelerator it is for.")


def accelerator_of(commands: bytes) -> str:
    """Name of the accelerator that a stream was compiled for, such as "ethos-u55-128"."""
    word = configuration_of(commands)
    name = f"ethos-{dict(enumerate(GENERATIONS)).get(word >> 28)}-{1 << (word & 15)}"
    if name not in accelerators():
        raise bad_payload(
            f"The Ethos-U command stream is for an accelerator of configuration 0x{word:08x}, which there is not."
        )
    return name


def words_of(commands: bytes) -> tuple[int, ...]:
    """The words of the register command stream inside the driver actions."""
    first, length = place_of(commands)
    return _words(commands)[first : first + length]


def place_of(commands: bytes) -> tuple[int, int]:
    """Index of the stream's first word, and number of words."""
    words = _words(commands)
    at = 1
    while commands[:4] == _COP1 and at < len(words):
        action = words[at] & 0xFF
        if action == _STREAM:
            length = words[at] >> 16 | (words[at] >> 8 & 0xFF) << 16
            if at + 1 + length <= len(words):
                return at + 1, length
            break
        at += 3 if action == _CONFIG else 1
    if commands[:4] == _COP2 and len(words) > _CONFIG_OF_COP2:
        first = 7 + words[6] // 4
        length = (words[5] - 4 - words[6]) // 4
        if length >= 0 and first + length <= len(words):
            return first, length
    raise bad_payload("The driver actions of the Ethos-U payload hold no command stream.")


class Command(NamedTuple):
    """A command of a stream.

    Attributes:
        at: index of its first word.
        word: that word: parameter, flag and code.
        value: the second word of commands that have one, or None; None also if the stream ends before it.
    """

    at: int
    word: int
    value: int | None

    @property
    def register(self) -> Register:
        """The register that it sets, if its code is that of one."""
        return bool(self.word & _HAS_VALUE), self.word & _CODE

    @property
    def parameter(self) -> int:
        return self.word >> 16


def commands_in(words: Sequence[int]) -> Iterator[Command]:
    """Yield the commands of a stream, in order."""
    at = 0
    while at < len(words):
        word = words[at]
        end = at + (2 if word & _HAS_VALUE else 1)
        yield Command(at, word, words[at + 1] if at + 1 < end <= len(words) else None)
        at = end


def operation_offsets(commands: bytes) -> list[int]:
    """Bytes from the first command of a stream to each that starts an operation or a transfer."""
    starts = {small(code) for code in (*KERNELS, reg.TRANSFER)}
    return [4 * command.at for command in commands_in(words_of(commands)) if command.register in starts]


def made_to_wait(commands: bytes, offset: int) -> bytes | None:
    """Make an operation start after the previous one has finished, and those that inherit its setting.

    Args:
        offset: bytes from the first command of the stream to the one that starts the operation.

    Returns:
        None if nothing in the stream allows an earlier start.
    """
    settings = [c for c in commands_in(words_of(commands)) if 4 * c.at < offset and c.register == small(reg.BLOCKDEP)]
    if not settings or not settings[-1].parameter:
        return None
    place = 4 * (place_of(commands)[0] + settings[-1].at)
    return commands[:place] + struct.pack("<I", settings[-1].word & 0xFFFF) + commands[place + 4 :]


def reads_sparse(commands: bytes) -> list[bool]:
    """Return for each operation of a stream whether it reads 2:4 sparse weights.

    In the order of `operation_offsets`; for operations without weights, the inherited value has no meaning.
    """
    operations = (action for action in actions_of(commands) if action.is_operation)
    return [bool(o.code == reg.CONVOLUTION and o.number(reg.WEIGHT_FORMAT) & _SPARSE) for o in operations]


def results_of(commands: bytes) -> list[int]:
    """Number of elements that each operation of a stream writes, without transfers."""
    kernels = (action for action in actions_of(commands) if action.is_kernel)
    return [
        math.prod(kernel.number(code) + 1 for code in (reg.OFM_WIDTH, reg.OFM_HEIGHT, reg.OFM_DEPTH))
        for kernel in kernels
    ]


def small(code: int) -> Register:
    """The 16-bit register of a code."""
    return False, code


def large(code: int) -> Register:
    """The register of a code with a second word."""
    return True, code


@dataclass(frozen=True)
class Action:
    """An operation, a transfer, a wait or another command with an effect: its code, its upper 16 bits, and the
    registers that an operation or transfer reads."""

    code: int
    parameter: int = 0
    registers: Mapping[Register, Value] = field(default_factory=dict)

    @property
    def is_kernel(self) -> bool:
        return self.code in KERNELS

    @property
    def is_transfer(self) -> bool:
        return self.code == reg.TRANSFER

    @property
    def is_operation(self) -> bool:
        """True if disassemblies and profiles number it."""
        return self.is_kernel or self.is_transfer

    def number(self, code: int) -> int:
        """Value of a 16-bit register; 0 if it is not set."""
        return self.registers.get(small(code), (0, None))[0]

    def address(self, code: int) -> int:
        """Value of a register with a second word, whose parameter is the upper part; 0 if it is not set."""
        high, low = self.registers.get(large(code), (0, 0))
        return (low or 0) | high << 32


def actions_of(commands: bytes) -> list[Action]:
    """Return the actions of a stream, in order."""
    found: list[Action] = []
    kernels: dict[Register, Value] = {}
    transfers: dict[Register, Value] = {}
    for command in commands_in(words_of(commands)):
        is_large, code = register = command.register
        if is_large or code >= _FIRST_REGISTER:
            is_of_transfer = code in (_TRANSFER_LARGE if is_large else _TRANSFER_SMALL)
            (transfers if is_of_transfer else kernels)[register] = command.parameter, command.value
        else:
            registers = transfers if code == reg.TRANSFER else kernels if code in KERNELS else {}
            found.append(Action(code, command.parameter, dict(registers)))
    return found


def _encoded(actions: Sequence[Action]) -> Iterator[int]:
    state: dict[Register, Value] = {}
    for action in actions:
        for (has_value, code), value in action.registers.items():
            if state.get((has_value, code)) == value:
                continue
            state[has_value, code] = value
            yield value[0] << 16 | (_HAS_VALUE if has_value else 0) | code
            if value[1] is not None:
                yield value[1]
        yield action.parameter << 16 | action.code


def can_be_rewritten(commands: bytes) -> bool:
    """True if `with_actions` supports the driver actions of a stream."""
    return commands[:4] == _COP1


def with_actions(commands: bytes, actions: Sequence[Action]) -> bytes:
    """Replace the stream inside the driver actions (``COP1``)."""
    first, length = place_of(commands)
    words = list(_encoded(actions))
    # The word before the stream has its length: the low 16 bits in its upper half, 8 more bits below.
    head = _STREAM | (len(words) >> 16 & 0xFF) << 8 | (len(words) & 0xFFFF) << 16
    front, rest = commands[: 4 * (first - 1)], commands[4 * (first + length) :]
    return front + struct.pack(f"<{1 + len(words)}I", head, *words) + rest
