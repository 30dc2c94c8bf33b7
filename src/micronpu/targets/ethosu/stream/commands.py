"""Read properties of a command stream without running it. Standard library only.

Source: the driver actions of Arm's public Ethos-U core driver, and the configuration register of the manuals.
"""

from __future__ import annotations

import math
import struct

from micronpu.base.errors import PayloadError
from micronpu.targets.ethosu.accelerators import accelerators

STREAM_IDENTIFIERS = 1 << 20
"""First identifier of a stream's operations in a debug handle map; smaller ones belong to the flatbuffer."""

_COP1, _COP2 = b"COP1", b"COP2"
_CONFIG, _STREAM, _NOP = 1, 2, 5
_CONFIG_OF_COP2 = 10
"""Index of the configuration word, after ten words of header, entry and metadata."""
_HAS_VALUE, _CODE = 0x4000, 0x3FF
_STARTS = (0x002, 0x003, 0x005, 0x006, 0x007, 0x010)
"""Codes of convolution, depthwise convolution, pool, element-wise operation, resize and transfer."""
_CONVOLUTION, _TRANSFER = _STARTS[0], _STARTS[-1]
_OFM_SIZES = (0x111, 0x112, 0x113)
"""Codes of width, height and depth of the output, each minus one."""
_BLOCKDEP = 0x12F
"""Code of the number of blocks of an operation that may start before the previous one has finished."""
_WEIGHT_FORMAT, _SPARSE = 0x12E, 0x10
"""Code of the format of the weights, U85 only, and its flag for 2:4 sparse weights."""
_GENERATIONS = {0: "u55", 1: "u65", 2: "u85"}


def _words(commands: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(commands) // 4}I", commands[: len(commands) // 4 * 4])


def configuration_of(commands: bytes) -> int:
    """The configuration word of a stream: product in the upper 4 bits, log2 of the MACs in the lower 4.

    Raises:
        PayloadError: it has none.
    """
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
    raise PayloadError(
        "The driver actions of the Ethos-U command stream do not say which accelerator it is for.",
        hint="compile the model again with this version of micronpu",
    )


def words_of(commands: bytes) -> tuple[int, ...]:
    """The words of the register command stream inside the driver actions.

    Raises:
        PayloadError: it contains no such stream.
    """
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
    raise PayloadError(
        "The driver actions of the Ethos-U payload hold no command stream.",
        hint="compile the model again with this version of micronpu",
    )


def operation_offsets(commands: bytes) -> list[int]:
    """Bytes from the first command of a stream to each that starts an operation or a transfer."""
    words, at, found = words_of(commands), 0, []
    while at < len(words):
        has_value, code = bool(words[at] & _HAS_VALUE), words[at] & _CODE
        if not has_value and code in _STARTS:
            found.append(4 * at)
        at += 2 if has_value else 1
    return found


def made_to_wait(commands: bytes, offset: int) -> bytes | None:
    """Make an operation start after the previous one has finished, and those that inherit its setting.

    Args:
        offset: bytes from the first command of the stream to the one that starts the operation.

    Returns:
        None if nothing in the stream allows an earlier start.
    """
    words, at, last = words_of(commands), 0, None
    while at < len(words) and 4 * at < offset:
        has_value, code = bool(words[at] & _HAS_VALUE), words[at] & _CODE
        if not has_value and code == _BLOCKDEP:
            last = at
        at += 2 if has_value else 1
    if last is None or not words[last] >> 16:
        return None
    place = 4 * (place_of(commands)[0] + last)
    return commands[:place] + struct.pack("<I", words[last] & 0xFFFF) + commands[place + 4 :]


def reads_sparse(commands: bytes) -> list[bool]:
    """Return for each operation of a stream whether it reads 2:4 sparse weights.

    In the order of `operation_offsets`; for operations without weights, the inherited value has no meaning.
    """
    words, at, found, sparse = words_of(commands), 0, [], False
    while at < len(words):
        has_value, code = bool(words[at] & _HAS_VALUE), words[at] & _CODE
        if not has_value and code == _WEIGHT_FORMAT:
            sparse = bool(words[at] >> 16 & _SPARSE)
        elif not has_value and code in _STARTS:
            found.append(sparse and code == _CONVOLUTION)
        at += 2 if has_value else 1
    return found


def accelerator_of(commands: bytes) -> str:
    """Name of the accelerator that a stream was compiled for, such as "ethos-u55-128".

    Raises:
        PayloadError: there is no such accelerator, or the stream does not name one.
    """
    word = configuration_of(commands)
    family, macs = _GENERATIONS.get(word >> 28, "?"), 1 << (word & 15)
    name = f"ethos-{family}-{macs}"
    if name not in accelerators():
        raise PayloadError(
            f"The Ethos-U command stream is for an accelerator of configuration 0x{word:08x}, which there is not.",
            hint="compile the model again with this version of micronpu",
        )
    return name


def results_of(commands: bytes) -> list[int]:
    """Number of elements that each operation of a stream writes, without transfers."""
    words, at, found, sizes = words_of(commands), 0, [], dict.fromkeys(_OFM_SIZES, 1)
    while at < len(words):
        has_value, code = bool(words[at] & _HAS_VALUE), words[at] & _CODE
        if not has_value and code in sizes:
            sizes[code] = (words[at] >> 16) + 1
        elif not has_value and code in _STARTS and code != _TRANSFER:
            found.append(math.prod(sizes.values()))
        at += 2 if has_value else 1
    return found
