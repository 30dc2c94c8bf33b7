"""Convert a command stream to operations with their register values, and back.

    SET IFM_BASE ..  SET WEIGHT_BASE ..  CONV  SET WEIGHT_BASE ..  CONV
    (CONV, {IFM_BASE, WEIGHT_BASE}), (CONV, {IFM_BASE, WEIGHT_BASE'})

A register keeps its value across operations, so a stream sets only changed values. In this form operations can be
moved, modified and inserted; the written stream sets only registers that differ.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from micronpu.targets.ethosu.stream.commands import place_of, words_of

HAS_VALUE, CODE = 0x4000, 0x3FF
STOP, CONVOLUTION, DEPTHWISE, TRANSFER = 0x000, 0x002, 0x003, 0x010
TRANSFER_WAIT, KERNEL_WAIT = 0x011, 0x012
KERNELS = (CONVOLUTION, DEPTHWISE, 0x005, 0x006, 0x007)
"""Codes of convolution, depthwise convolution, pool, element-wise operation and resize."""
_FIRST_REGISTER = 0x100
_TRANSFER_SMALL, _TRANSFER_LARGE = range(0x130, 0x140), range(0x030, 0x040)
"""Codes of the registers that only transfers read, without and with a second word."""

Register = tuple[bool, int]
"""True if it has a second word, and its code."""
Value = tuple[int, int | None]
"""Parameter, and the second word if there is one."""


def small(code: int) -> Register:
    """The 16-bit register of a code."""
    return False, code


def large(code: int) -> Register:
    """The register of a code with a second word."""
    return True, code


@dataclass(frozen=True)
class Action:
    """An operation, a transfer, a wait or another command that has an effect.

    Attributes:
        code: of the command.
        parameter: its upper 16 bits.
        registers: values of the registers that an operation or transfer reads; empty for others.
    """

    code: int
    parameter: int = 0
    registers: Mapping[Register, Value] = field(default_factory=dict)

    @property
    def is_kernel(self) -> bool:
        return self.code in KERNELS

    @property
    def is_transfer(self) -> bool:
        return self.code == TRANSFER

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
    """Return the actions of a stream, in order.

    Raises:
        PayloadError: it contains no stream.
    """
    words, at, found = words_of(commands), 0, []
    kernels: dict[Register, Value] = {}
    transfers: dict[Register, Value] = {}
    while at < len(words):
        word = words[at]
        has_value, code = bool(word & HAS_VALUE), word & CODE
        if has_value and at + 1 < len(words):
            (transfers if code in _TRANSFER_LARGE else kernels)[True, code] = word >> 16, words[at + 1]
        elif code >= _FIRST_REGISTER:
            (transfers if code in _TRANSFER_SMALL else kernels)[False, code] = word >> 16, None
        elif code == TRANSFER:
            found.append(Action(code, word >> 16, dict(transfers)))
        elif code in KERNELS:
            found.append(Action(code, word >> 16, dict(kernels)))
        else:
            found.append(Action(code, word >> 16))
        at += 2 if has_value else 1
    return found


def _words(actions: Sequence[Action]) -> Iterator[int]:
    state: dict[Register, Value] = {}
    for action in actions:
        for (has_value, code), value in action.registers.items():
            if state.get((has_value, code)) == value:
                continue
            state[has_value, code] = value
            yield value[0] << 16 | (HAS_VALUE if has_value else 0) | code
            if value[1] is not None:
                yield value[1]
        yield action.parameter << 16 | action.code


def can_be_rewritten(commands: bytes) -> bool:
    """True if `with_actions` supports the driver actions of a stream."""
    return commands[:4] == b"COP1"


def with_actions(commands: bytes, actions: Sequence[Action]) -> bytes:
    """Replace the stream inside the driver actions (``COP1``).

    Raises:
        PayloadError: it contains no stream.
    """
    first, length = place_of(commands)
    words = list(_words(actions))
    # The word before the stream has its length: the low 16 bits in its upper half, 8 more bits below.
    head = 2 | (len(words) >> 16 & 0xFF) << 8 | (len(words) & 0xFFFF) << 16
    front, rest = commands[: 4 * (first - 1)], commands[4 * (first + length) :]
    return front + struct.pack(f"<{1 + len(words)}I", head, *words) + rest
