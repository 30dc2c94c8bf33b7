"""The digest that a program carries of itself, so that accidental damage is found before anything runs.

    stamped = stamp(buffer)
    state_of(stamped)        # Digest.RIGHT

It travels as named data, which ExecuTorch's runtimes ignore: a magic word and the SHA-256 of the whole file, computed
with zeros in its own place.  `micronpu.compile` writes it.  A program of ExecuTorch's own flow has the place, but
nobody who fills it: `stamp` does.  It tells damage, not who made the program.

A program for a board is without that place, and has its digest behind its end, where no runtime reads: `seal`.
"""

from __future__ import annotations

import hashlib
import hmac
from enum import Enum

from micronpu.base.arguments import check_bytes, check_text
from micronpu.base.errors import PayloadError
from micronpu.base.flatbuffer import CorruptFlatbufferError, root
from micronpu.container.digest import EMPTY, KEY, MAGIC, SIZE
from micronpu.program.pte import IDENTIFIER, extents
from micronpu.upstream.pte import DataSegment, NamedData, Program


class Digest(Enum):
    """What the digest says of a program."""

    RIGHT = "right"
    WRONG = "wrong"
    MISSING = "missing"


def state_of(data: bytes, name: str = "The program") -> Digest:
    """Compares a program with the digest that it carries.

    Args:
        data: the file's contents, as `read_pte` takes them.
    """
    check_bytes("data", data)
    check_text("name", name)
    if (sealed := _sealed(data)) is not None:
        return Digest.RIGHT if sealed else Digest.WRONG
    place = _place(data, name)
    if place is None:
        # Neither the name nor the magic word: with one of them alone, the other was damaged.
        is_marked = KEY.encode() in data or MAGIC in data
        return Digest.WRONG if is_marked else Digest.MISSING
    found = data[place : place + SIZE]
    if found == bytes(SIZE):
        return Digest.MISSING
    return Digest.RIGHT if hmac.compare_digest(found, _digest(data, place)) else Digest.WRONG


def stamp(data: bytes, name: str = "The program") -> bytes:
    """The program with its digest in the place that it has for one.

    Raises:
        PayloadError: it has none: micronpu's partitioners and `micronpu.compile` make one.
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
    return b"".join((view[:place], _digest(data, place), view[place + SIZE :]))


_SEAL = b"micronpu seal256"
_SEAL_SIZE = len(_SEAL) + SIZE


def seal(data: bytes) -> bytes:
    """A program with its digest behind its end, which costs a board nothing: its firmware has what is before."""
    return data + _SEAL + hashlib.sha256(data).digest()


def with_digest_of(original: bytes, made: bytes, name: str = "The program") -> bytes:
    """A program made of another, with a right digest in the place where the other has one, or as it is.

    Args:
        made: the original with bytes changed before what a seal has put behind its end.
    """
    if state_of(original, name) is not Digest.RIGHT:
        return made
    return stamp(made) if _sealed(original) is None else seal(made[:-_SEAL_SIZE])


def unsealed(data: bytes) -> bytes:
    """What `seal` was given, or a program without such a digest as it is."""
    return data if _sealed(data) is None else data[:-_SEAL_SIZE]


def _sealed(data: bytes) -> bool | None:
    """Whether the digest behind a program's end is right; None where there is none.

    One whose word or place is damaged is wrong: nothing else is known to write so few bytes behind a program.
    """
    if data[-_SEAL_SIZE:-SIZE] == _SEAL:
        return hmac.compare_digest(data[-SIZE:], hashlib.sha256(memoryview(data)[:-_SEAL_SIZE]).digest())
    try:
        program_size, base, segments = extents(data, "")
    except PayloadError:
        return None  # which is said elsewhere
    behind = len(data) - max(program_size, base + segments)
    return False if 0 < behind <= _SEAL_SIZE or _SEAL in data[-2 * _SEAL_SIZE :] else None


def _digest(data: bytes, place: int) -> bytes:
    digest = hashlib.sha256(memoryview(data)[:place])
    digest.update(bytes(SIZE))
    digest.update(memoryview(data)[place + SIZE :])
    return digest.digest()


def _place(data: bytes, name: str) -> int | None:
    """Where the digest is in the file; None where there is no place for one.

    Raises:
        PayloadError: the file is cut.
    """
    try:
        program_size, base, _ = extents(data, name)
        program = root(memoryview(data)[:program_size], IDENTIFIER)
        for entry in program.vector(Program.NAMED_DATA).tables():
            if entry.string(NamedData.KEY) != KEY:
                continue
            segment = program.vector(Program.SEGMENTS).table(entry.integer(NamedData.SEGMENT_INDEX, "<I"))
            start, size = base + segment.integer(DataSegment.OFFSET, "<Q"), segment.integer(DataSegment.SIZE, "<Q")
            if size == len(EMPTY) and data[start : start + len(MAGIC)] == MAGIC and start + size <= len(data):
                return start + len(MAGIC)
    except CorruptFlatbufferError:
        pass
    return None
