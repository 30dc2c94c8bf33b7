"""The open container: a program for the host's simulators, stored where a board has microcode.

A board refuses it, because its magic number is not Neutron's. Its record, 64 bytes, little-endian 32-bit words:

    0   magic 0x52504E4D ("MNPR")          5   number of operators
    1   format version, 1                  6   size of this record, 64
    2   number of inputs                   7   size of the model in bytes
    3   number of outputs                  8   CRC-32 of words 0 to 7
    4   CRC-32 of the model                9 to 15  zero

Neutron microcode has these two sizes in words 6 and 7 too, so both kinds of payload are parsed alike.
CRC-32 is zlib's (polynomial 0xEDB88320). Standard library only.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from micronpu.base.errors import PayloadError
from micronpu.container.payload import REFERENCE_MAGIC, Artifacts, kind_of

CONTAINER_VERSION = 1
RECORD_SIZE = 64
"""Size of the reference container's record in bytes."""

_RECORD = struct.Struct("<9I28x")
_COMPILE_AGAIN = "compile the model again with this version of micronpu"


@dataclass(frozen=True)
class ReferenceContainer:
    """The open container, parsed and verified.

    Attributes:
        model: the LiteRT flatbuffer.
        num_inputs, num_outputs, num_operators: counts of its only subgraph.
        crc32: of `model`.
        version: of the container's format.
    """

    model: bytes
    num_inputs: int
    num_outputs: int
    num_operators: int
    crc32: int
    version: int = CONTAINER_VERSION


def reference_artifacts(model: bytes, num_inputs: int, num_outputs: int, num_operators: int) -> Artifacts:
    """Return sections of a payload: a program for the host's simulator in the open container.

    Args:
        model: LiteRT or TOSA flatbuffer with the given numbers of inputs, outputs and operators.
    """
    head = struct.pack(
        "<8I",
        REFERENCE_MAGIC,
        CONTAINER_VERSION,
        num_inputs,
        num_outputs,
        zlib.crc32(model),
        num_operators,
        RECORD_SIZE,
        len(model),
    )
    record = (head + struct.pack("<I", zlib.crc32(head))).ljust(RECORD_SIZE, b"\0")
    return Artifacts(
        microcode=record,
        weights=bytes(model),
        kernels=b"",
        kind="reference",
        versions={"reference container": str(CONTAINER_VERSION)},
    )


def read_container(microcode: bytes, weights: bytes) -> ReferenceContainer:
    """Verify a reference container and return its model.

    Args:
        microcode: the 64-byte record; more bytes are ignored.
        weights: the LiteRT model; more bytes (padding) are ignored.

    Raises:
        PayloadError: microcode of real silicon, another format version, truncated, or a wrong checksum.
    """
    if kind_of(microcode) == "silicon":
        raise PayloadError(
            "The payload holds microcode for a real chip, which the host cannot execute.",
            hint="compile with the reference converter to run on the host, or run this program on the board",
        )
    if len(microcode) < RECORD_SIZE:
        raise PayloadError(
            f"The reference container is truncated: its record has {len(microcode)} bytes instead of {RECORD_SIZE}.",
            hint=_COMPILE_AGAIN,
        )
    words = _RECORD.unpack_from(microcode)
    _, version, num_inputs, num_outputs, crc, num_operators, record_size, size, head_crc = words
    # Check the version first: another version may store its checksum elsewhere.
    if version != CONTAINER_VERSION:
        raise PayloadError(
            f"The reference container has format version {version}, but this micronpu reads {CONTAINER_VERSION}.",
            hint=_COMPILE_AGAIN,
        )
    if zlib.crc32(microcode[:32]) != head_crc or record_size != RECORD_SIZE:
        raise PayloadError(
            "The record of the reference container is corrupted: its checksum is wrong.", hint=_COMPILE_AGAIN
        )
    if len(weights) < size:
        raise PayloadError(
            f"The LiteRT model in the reference container is truncated: {len(weights)} of {size} bytes are there.",
            hint="copy the .pte file again or " + _COMPILE_AGAIN,
        )
    model = bytes(weights[:size])
    if zlib.crc32(model) != crc:
        raise PayloadError(
            "The LiteRT model in the reference container is corrupted: "
            f"its CRC-32 is {zlib.crc32(model):08x} instead of {crc:08x}.",
            hint="copy the .pte file again or " + _COMPILE_AGAIN,
        )
    return ReferenceContainer(model, num_inputs, num_outputs, num_operators, crc)
