"""The digest that a program contains, to detect accidental damage before it runs.

    stamped = stamp(buffer)
    state_of(stamped)        # Digest.RIGHT

It is stored as named data, which ExecuTorch's runtimes ignore: a magic word and the SHA-256 of the whole file, computed
with zeros in its place. `micronpu.compile` writes it. A program of ExecuTorch's own flow has an empty placeholder,
which `stamp` fills. It detects damage, not tampering.

A program for a board has no placeholder; its digest is appended to the file, where no runtime reads it: `seal`.
"""

from __future__ import annotations

import hashlib
import hmac
from enum import Enum

from micronpu.base.arguments import check_bytes, check_text
from micronpu.base.errors import PayloadError
from micronpu.base.flatbuffer import CorruptFlatbufferError
from micronpu.program.pte import DIGEST_KEY, DIGEST_MAGIC, DIGEST_SIZE, EMPTY_DIGEST, extents, opened
from micronpu.upstream.pte import DataSegment, NamedData, Program


class Digest(Enum):
    """Result of comparing a program with its digest."""

    RIGHT = "right"
    WRONG = "wrong"
    MISSING = "missing"


def state_of(data: bytes, name: str = "The program") -> Digest:
    """Compare a program with the digest that it contains.

    Args:
        data: the file's contents, as `read_pte` takes them.
    """
    check_bytes("data", data)
    check_text("name", name)
    if (sealed := _sealed(data)) is not None:
        return Digest.RIGHT if sealed else Digest.WRONG
    place = _place(data, name)
    if place is None:
        # Missing requires that both name and magic word are absent: either of them alone means that the other was
        # damaged.
        is_marked = DIGEST_KEY.encode() in data or DIGEST_MAGIC in data
        return Digest.WRONG if is_marked else Digest.MISSING
    found = data[place : place + DIGEST_SIZE]
    if found == bytes(DIGEST_SIZE):
        return Digest.MISSING
    return Digest.RIGHT if hmac.compare_digest(found, _digest(data, place)) else Digest.WRONG


def stamp(data: bytes, name: str = "The program") -> bytes:
    """Return the program with its digest filled in.

    Raises:
        PayloadError: it has no placeholder; micronpu's partitioners and `micronpu.compile` make one.
    """
    check_bytes("data", data)
    check_text("name", name)
    place = _place(data, name)
    if place is None:
        raise PayloadError(
            f"{name} has no place for a digest, because no partition of it was compiled by micronpu.",
            hint="micronpu.compile, or a micronpu partitioner that delegates something",
        )
    view = memoryview(data)
    return b"".join((view[:place], _digest(data, place), view[place + DIGEST_SIZE :]))


_SEAL = b"micronpu seal256"
_SEAL_SIZE = len(_SEAL) + DIGEST_SIZE


def seal(data: bytes) -> bytes:
    """Append the digest to a program; boards do not store it, since their firmware ends before it."""
    return data + _SEAL + hashlib.sha256(data).digest()


def with_digest_of(original: bytes, made: bytes, name: str = "The program") -> bytes:
    """Return a program derived from another by changes before its seal, with a correct digest if the original has
    one."""
    if state_of(original, name) is not Digest.RIGHT:
        return made
    return stamp(made) if _sealed(original) is None else seal(made[:-_SEAL_SIZE])


def unsealed(data: bytes) -> bytes:
    """Undo `seal`; return a program without such a digest unchanged."""
    return data if _sealed(data) is None else data[:-_SEAL_SIZE]


def _sealed(data: bytes) -> bool | None:
    """True if the digest at a program's end is right; None if there is none.

    A damaged marker or position counts as wrong: no other tool is known to append so few bytes to a program.
    """
    if data[-_SEAL_SIZE:-DIGEST_SIZE] == _SEAL:
        return hmac.compare_digest(data[-DIGEST_SIZE:], hashlib.sha256(memoryview(data)[:-_SEAL_SIZE]).digest())
    try:
        program_size, base, segments = extents(data, "")
    except PayloadError:
        return None  # reported elsewhere
    behind = len(data) - max(program_size, base + segments)
    return False if 0 < behind <= _SEAL_SIZE or _SEAL in data[-2 * _SEAL_SIZE :] else None


def _digest(data: bytes, place: int) -> bytes:
    digest = hashlib.sha256(memoryview(data)[:place])
    digest.update(bytes(DIGEST_SIZE))
    digest.update(memoryview(data)[place + DIGEST_SIZE :])
    return digest.digest()


def _place(data: bytes, name: str) -> int | None:
    """Offset of the digest in the file; None if the file has no place for one."""
    try:
        program, _, base, _ = opened(data, name)
        for entry in program.vector(Program.NAMED_DATA).tables():
            if entry.string(NamedData.KEY) != DIGEST_KEY:
                continue
            segment = program.vector(Program.SEGMENTS).table(entry.integer(NamedData.SEGMENT_INDEX, "<I"))
            start, size = base + segment.integer(DataSegment.OFFSET, "<Q"), segment.integer(DataSegment.SIZE, "<Q")
            if (
                size == len(EMPTY_DIGEST)
                and data[start : start + len(DIGEST_MAGIC)] == DIGEST_MAGIC
                and start + size <= len(data)
            ):
                return start + len(DIGEST_MAGIC)
    except CorruptFlatbufferError:
        pass
    return None
