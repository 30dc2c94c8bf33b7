"""Seeded mutations of bytes and of text."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

_WORDS = (0, 1, 2, 7, 127, 128, 255, 256, 65535, 1 << 15, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 63)
_BYTES = (0, 1, 2, 4, 5, 127, 128, 254, 255)
_NUMBER = re.compile(rb"-?\d+(\.\d+)?")
_TOKENS = (
    *(b"-1", b"0", b"1e999", b"nan", b"inf", b"-0.0", b"99999999999999999999", b"0x10", b"true", b"null", b"a" * 300),
    *(b"''", b'""', b"[]", b"{}", b"=", b"[", b"]", b"{", b"\n", b"\r", b"%n%s", b"../../x"),
    *(b"\x00", b"\xff\xfe", b"\xed\xa0\x80"),
)


def mutate_bytes(data: bytes, random_: random.Random, others: Sequence[bytes] = ()) -> bytes:
    """One to four changes: bytes, words of two to eight, spans cut, doubled, zeroed or taken from elsewhere."""
    changed = bytearray(data)
    for _ in range(random_.choice((1, 1, 1, 2, 4))):
        if not changed:
            break
        position = random_.randrange(len(changed))
        kind = random_.randrange(12)
        if kind <= 2:
            changed[position] ^= 1 << random_.randrange(8)
        elif kind == 3:
            changed[position] = random_.choice(_BYTES)
        elif kind <= 6:
            size = random_.choice((2, 4, 4, 8))
            position -= position % size
            value = random_.choice(_WORDS) + random_.choice((0, 0, 1, -1))
            changed[position : position + size] = (value % (1 << 8 * size)).to_bytes(size, "little")
        elif kind == 7:  # a number that nearly fits
            size = random_.choice((2, 4))
            position -= position % size
            value = int.from_bytes(changed[position : position + size], "little") + random_.choice(
                (-4, -1, 1, 2, 4, 16)
            )
            changed[position : position + size] = (value % (1 << 8 * size)).to_bytes(size, "little")
        else:
            length = random_.choice((1, 4, 4, 8, 16, 64, 256))
            span = changed[position : position + length]
            if kind == 8:
                del changed[position : position + length]
            elif kind == 9:
                changed[position:position] = span
            elif kind == 10:
                source = random_.choice(others) if others else data
                start = random_.randrange(len(source)) if source else 0
                changed[position : position + length] = source[start : start + length]
            else:
                changed[position : position + length] = bytes(len(span))
    if random_.randrange(20) == 0:
        del changed[random_.randrange(len(changed) + 1) :]
    return bytes(changed)


def mutate_within(data: bytes, random_: random.Random, start: int, size: int) -> bytes:
    """Like `mutate_bytes`, of a part that keeps its length."""
    part = mutate_bytes(data[start : start + size], random_)
    part = part[:size] + data[start + len(part) : start + size]
    return data[:start] + part + data[start + size :]


def mutate_text(data: bytes, random_: random.Random, others: Sequence[bytes] = ()) -> bytes:
    """Lines doubled, dropped, moved and cut, numbers and words replaced, and now and then plain bytes."""
    if random_.randrange(4) == 0:
        return mutate_bytes(data, random_, others)
    lines = data.split(b"\n")
    for _ in range(random_.choice((1, 1, 2, 4))):
        at = random_.randrange(len(lines))
        kind = random_.randrange(7)
        if kind == 0:
            lines.insert(at, lines[random_.randrange(len(lines))])
        elif kind == 1 and len(lines) > 1:
            del lines[at]
        elif kind == 2:
            lines[at] = lines[at][: random_.randrange(len(lines[at]) + 1)]
        elif kind == 3:
            place = random_.randrange(len(lines[at]) + 1)
            lines[at] = lines[at][:place] + random_.choice(_TOKENS) + lines[at][place:]
        elif kind == 4:
            token = random_.choice(_TOKENS)
            lines[at] = _NUMBER.sub(lambda match, token=token: token, lines[at], count=1)
        elif kind == 5:
            head, separator, _ = lines[at].partition(b"=")
            lines[at] = head + separator + random_.choice(_TOKENS)
        else:
            source = random_.choice(others) if others else data
            lines.insert(at, random_.choice(source.split(b"\n")))
    return b"\n".join(lines)
