"""The payload of an Ethos-U delegate, block by block, as the board's delegate reads it.

    16 bytes   name of the block, padded with zeros
    4 bytes    size of its data, little endian
    1 byte     0: the data follows; 1: a key of 64 characters follows, under which the data is stored elsewhere
    11 bytes   zero
    data       padded with zeros to a multiple of 16

Source: the public runtime of ExecuTorch (EthosUBackend.cpp, VelaBinStream); standard library only.
"""

from __future__ import annotations

import functools
import math
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from micronpu.container.payload import bad_payload

_HEADER = struct.Struct("<16sIB11x")
_IO = struct.Struct("<9i")
APART = (3, 4)
"""Regions of inputs and of outputs outside of the scratch memory."""
KEY_SIZE = 64
"""Bytes of the key of a block stored elsewhere."""
FIRST, LAST = "vela_bin_stream", "vela_end_stream"
COMMANDS, CONSTANTS = "cmd_data", "weight_data"
BLOCKS = (FIRST, COMMANDS, CONSTANTS, "scratch_size", "inputs", "outputs", LAST)


@dataclass(frozen=True)
class PayloadBlock:
    """One block: its data, or the key of data stored elsewhere."""

    name: str
    data: bytes | memoryview
    external: bool = False


@dataclass(frozen=True)
class VelaIO:
    """An input or output of a Vela program, of up to six sizes, at an offset in a region: 1 is the scratch memory."""

    shape: tuple[int, ...]
    element_size: int
    address: int
    region: int

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.element_size


@dataclass(frozen=True)
class EthosUPayload:
    """The content of a payload: commands with their driver actions, encoded weights and tables (a view of a payload if
    there is one), and the bytes of scratch memory for inputs, outputs and intermediate values."""

    commands: bytes
    constants: bytes | memoryview
    scratch_size: int
    inputs: tuple[VelaIO, ...]
    outputs: tuple[VelaIO, ...]


def pack(program: EthosUPayload, external: Mapping[str, str] | None = None) -> bytes:
    """Return a payload; some blocks may be stored elsewhere, under keys by the block's name."""
    return b"".join(_packed(program, external or {}))


def checksum(program: EthosUPayload) -> int:
    """CRC-32 of a payload, without serializing it."""
    return functools.reduce(lambda crc, part: zlib.crc32(part, crc), _packed(program, {}), 0)


def _packed(program: EthosUPayload, keys: Mapping[str, str]) -> Iterator[bytes | memoryview]:

    def data(name: str, content: bytes | memoryview) -> PayloadBlock:
        return PayloadBlock(name, keys[name].encode(), external=True) if name in keys else PayloadBlock(name, content)

    blocks = (
        PayloadBlock(FIRST, b""),
        data(COMMANDS, program.commands),
        data(CONSTANTS, program.constants),
        PayloadBlock("scratch_size", struct.pack("<I", program.scratch_size)),
        PayloadBlock("inputs", _pack_io(program.inputs)),
        PayloadBlock("outputs", _pack_io(program.outputs)),
        PayloadBlock(LAST, b""),
    )
    return (part for block in blocks for part in _parts(block))


def _parts(block: PayloadBlock) -> tuple[bytes, bytes | memoryview, bytes]:
    header = _HEADER.pack(block.name.encode(), len(block.data), int(block.external))
    return header, block.data, b"\0" * (-len(block.data) % 16)


def _pack_io(tensors: Sequence[VelaIO]) -> bytes:
    packed = struct.pack("<i", len(tensors))
    for t in tensors:
        shape = (1,) * (6 - len(t.shape)) + t.shape
        packed += _IO.pack(*shape, t.element_size, t.address, t.region)
    return packed


def blocks(payload: bytes) -> Iterator[PayloadBlock]:
    """The blocks of a payload in order; checks sizes, but not names."""
    for name, data, external in _blocks(payload):
        yield PayloadBlock(name, bytes(data), external)


def _blocks(payload: bytes | memoryview) -> Iterator[tuple[str, memoryview, bool]]:
    """Name and content of each block; True if the content is the key of data stored elsewhere."""
    offset, content = 0, memoryview(payload)
    while offset < len(payload):
        if offset + _HEADER.size > len(payload):
            raise bad_payload(f"The Ethos-U payload is truncated in a block header at byte {offset}.")
        raw, size, external = _HEADER.unpack_from(payload, offset)
        name = raw.rstrip(b"\0").decode("ascii", "replace")
        start = offset + _HEADER.size
        if start + size > len(payload):
            raise bad_payload(
                f"The Ethos-U payload is truncated: block {name!r} has {size} bytes, {len(payload) - start} are left."
            )
        yield name, content[start : start + size], bool(external)
        offset = start + size + (-size % 16)


def missing_blocks(payload: bytes | memoryview) -> tuple[str, ...]:
    """Names of the blocks that are stored elsewhere."""
    return tuple(name for name, _, external in _blocks(payload) if external)


def inlined(payload: bytes, named_data: Mapping[str, bytes]) -> bytes:
    """Return the payload with the blocks inlined that ``named_data`` contains; others stay keys."""
    if not missing_blocks(payload):
        return payload
    found: list[bytes | memoryview] = []
    for name, data, external in _blocks(payload):
        held = named_data.get(bytes(data).decode("ascii", "replace")) if external else None
        found += _parts(PayloadBlock(name, data, external) if held is None else PayloadBlock(name, held))
    return b"".join(found)


def parse(payload: bytes | memoryview) -> EthosUPayload:
    """Parse a payload as strictly as the board does.

    Raises:
        PayloadError: a block is unknown, missing, duplicated or misplaced, or a size does not fit.
    """
    found: dict[str, memoryview] = {}
    elsewhere: set[str] = set()
    for name, data, external in _blocks(payload):
        if name not in BLOCKS:
            raise bad_payload(f"The Ethos-U payload has an unknown block {name!r}.")
        if name in found:
            raise bad_payload(f"The Ethos-U payload has two blocks {name!r}.")
        found[name] = data
        elsewhere |= {name} if external else set()
    order = list(found)
    missing = [n for n in BLOCKS if n not in found]
    if missing:
        raise bad_payload(f"The Ethos-U payload has no block {missing[0]!r}.")
    if order[0] != FIRST or order[-1] != LAST:
        raise bad_payload(f"The Ethos-U payload does not begin with {FIRST!r} and end with {LAST!r}.")
    for name in (COMMANDS, CONSTANTS):
        if name in elsewhere and len(found[name]) != KEY_SIZE:
            raise bad_payload(
                f"The block {name!r} of the Ethos-U payload stands elsewhere under a key of {len(found[name])} "
                f"bytes, not {KEY_SIZE}, and the board refuses it."
            )
    commands = bytes(found[COMMANDS])
    if COMMANDS not in elsewhere and commands[:4] not in (b"COP1", b"COP2"):
        raise bad_payload(f"The Ethos-U command stream begins with {commands[:4]!r}, not with COP1 or COP2.")
    size = found["scratch_size"]
    if len(size) != 4:
        raise bad_payload(f"The block 'scratch_size' of the Ethos-U payload has {len(size)} bytes, not 4.")
    return EthosUPayload(
        commands,
        found[CONSTANTS],
        struct.unpack("<I", size)[0],
        _parse_io("inputs", found["inputs"]),
        _parse_io("outputs", found["outputs"]),
    )


def _parse_io(name: str, data: memoryview) -> tuple[VelaIO, ...]:
    count = struct.unpack_from("<i", data)[0] if len(data) >= 4 else -1
    if count < 0 or len(data) != 4 + count * _IO.size:
        raise bad_payload(f"The block {name!r} of the Ethos-U payload has {len(data)} bytes for {count} tensors.")
    rows = (_IO.unpack_from(data, 4 + i * _IO.size) for i in range(count))
    return tuple(VelaIO(tuple(row[:6]), *row[6:]) for row in rows)
