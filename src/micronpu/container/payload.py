"""The NeutronBackend payload, of the published header and three sections, and the open container.

    byte 0              I, number of NPU inputs
    byte 1              O, number of NPU outputs
    byte 2              A, number of input arguments of the delegate call
    I + O bytes         format of each input, then of each output: 1 channels last, 0 as is
    I + O bytes         delegate argument of each input; delegate output of each output
    1 byte              payload version, 0 or 1
    zeros to 16         header = align16(4 + 2 I + 2 O)
    microcode, weights, kernels, each padded with zeros to 16
    versions            only in silicon programs; see below

This is the layout that ExecuTorch's public `NeutronBackend.cpp` reads on the board. Only the microcode's public words
are read: [0] magic, [6] its size, [7] size of the weights.

A converter must match the firmware of the board, and neither checks it. The versions of the tools are therefore
appended after the last section, where the board does not read: a JSON object padded with zeros to 16, and the 16 bytes
`MNPV`, size of the JSON, its CRC-32 (zlib's), zero.

The open container is a program for the host's simulators, stored where a board has microcode. A board refuses it,
because its magic number is not Neutron's. Its record, 64 bytes, little-endian 32-bit words:

    0   magic 0x52504E4D ("MNPR")          5   number of operators
    1   format version, 1                  6   size of this record, 64
    2   number of inputs                   7   size of the model in bytes
    3   number of outputs                  8   CRC-32 of words 0 to 7
    4   CRC-32 of the model                9 to 15  zero

Words 6 and 7 are those of microcode, so one parser finds the sections of both kinds. Standard library only.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from micronpu.base.errors import PayloadError
from micronpu.base.parsing import parse_json

if TYPE_CHECKING:
    from micronpu.ir.graph import Graph

Kind = Literal["silicon", "reference"]

ALIGNMENT = 16
"""Alignment of every section in bytes."""
VERSIONS = (0, 1)
"""Payload versions that the published runtime supports."""
SILICON_MAGIC = 0x64434D6E
"""First microcode word of a program for a real Neutron."""
REFERENCE_MAGIC = 0x52504E4D
"""First word of our reference container, the bytes `MNPR`; a board returns `InvalidProgram`."""

_VERSIONS_MAGIC = b"MNPV"
MOST_TENSORS = 255
"""Maximum number of inputs, and of outputs: the header counts them in one byte."""
COMPILE_AGAIN = "compile the model again with this version of micronpu"


def bad_payload(what: str) -> PayloadError:
    """The error for a payload that this version did not write."""
    return PayloadError(what, hint=COMPILE_AGAIN)


CONTAINER_VERSION = 1
RECORD_SIZE = 64
"""Size of the reference container's record in bytes."""

_RECORD = struct.Struct("<9I28x")


@dataclass(frozen=True)
class TensorSlot:
    """One input or output of the NPU program.

    Attributes:
        index: delegate argument (for an input) or delegate output (for an output), 0 to 255.
        channels_last: the NPU's last axis is C where the program's last three axes are C, H, W.
    """

    index: int
    channels_last: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.index <= MOST_TENSORS:
            raise PayloadError(
                f"A tensor of the payload has index {self.index}, but its header has one byte for it.",
                hint="split the partition so that it has at most 255 inputs and outputs",
            )


@dataclass(frozen=True)
class PayloadLayout:
    """Mapping between the tensors of the delegate call and those of the NPU program.

    Attributes:
        inputs: in the order of the NPU program; an argument may feed more than one input.
        outputs: in the order of the NPU program; each delegate output occurs exactly once.
        num_arguments: number of input arguments of the delegate call.
        version: payload version, 0, or 1 with profile and debug buffers.
    """

    inputs: tuple[TensorSlot, ...]
    outputs: tuple[TensorSlot, ...]
    num_arguments: int
    version: int = 0

    def __post_init__(self) -> None:
        for count, what in (
            (len(self.inputs), "inputs"),
            (len(self.outputs), "outputs"),
            (self.num_arguments, "arguments"),
        ):
            if not 0 <= count <= MOST_TENSORS:
                raise PayloadError(
                    f"A payload cannot have {count} {what}, because its header counts them in one byte.",
                    hint="split the partition so that it has at most 255 inputs and outputs",
                )
        if self.version not in VERSIONS:
            raise PayloadError(
                f"The payload has version {self.version}, but this micronpu knows versions 0 and 1.",
                hint="update micronpu, or compile the model with this version",
            )
        for position, slot in enumerate(self.inputs):
            if slot.index >= self.num_arguments:
                raise bad_payload(
                    f"Input {position} of the payload reads argument {slot.index}, "
                    f"but the delegate call has only {self.num_arguments}."
                )
        taken = sorted(slot.index for slot in self.outputs)
        if taken != list(range(len(taken))):
            raise bad_payload(
                f"The outputs of the payload write delegate outputs {taken}, "
                f"but each of 0 to {len(taken) - 1} must be written once."
            )

    @property
    def header_size(self) -> int:
        """Bytes of the header, a multiple of 16."""
        return align(4 + 2 * len(self.inputs) + 2 * len(self.outputs))


@dataclass(frozen=True)
class Payload:
    """A parsed payload.

    Attributes:
        layout: the header.
        kind: "silicon" for microcode of a real Neutron, "reference" for our open container.
        microcode, weights, kernels: the sections; `kernels`, whose size is not stored, may end in up to 15 zero bytes.
        versions: name and version of the tools that compiled a silicon program; empty if not recorded.
    """

    layout: PayloadLayout
    kind: Kind
    microcode: bytes
    weights: bytes
    kernels: bytes
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Artifacts:
    """Output of a converter: the sections of the payload.

    Attributes:
        microcode, weights, kernels: raw sections, without padding.
        kind: "silicon" or "reference".
        versions: name and version of the tools. Those of silicon programs are stored in the payload.
        inputs: index of the LiteRT model's input for each input of the NPU program; None if the order is the same.
        outputs: the same for outputs; each output of the model occurs exactly once.
        payload_version: 0, or 1 if the program has a profile and a debug buffer.
        cycles: the converter's own estimate for the NPU alone, or None.
        warnings: the converter's warnings, verbatim.
        kernel_operators: for each kernel of a profiled silicon program, the LiteRT operators that it computes; None
            if unknown, or if the board does not number kernels.
        kernel_selection: C code that names the kernels in use; "" unless requested and supported.
        log: the converter's entire output.
    """

    microcode: bytes
    weights: bytes
    kernels: bytes
    kind: Kind
    versions: Mapping[str, str] = field(default_factory=dict, hash=False)
    inputs: tuple[int, ...] | None = None
    outputs: tuple[int, ...] | None = None
    payload_version: int = 0
    cycles: int | None = None
    warnings: tuple[str, ...] = ()
    kernel_selection: str = ""
    kernel_operators: tuple[tuple[int, ...], ...] | None = None
    log: str = ""

    def __post_init__(self) -> None:
        if kind_of(self.microcode) != self.kind:
            raise PayloadError(
                f"The converter says that its program is {self.kind}, but the microcode is {kind_of(self.microcode)}.",
                hint="report this to the author of the converter",
            )
        # Copied, so that the caller cannot modify a frozen value through its dictionary.
        object.__setattr__(self, "versions", MappingProxyType(dict(self.versions)))


def layout_of(graph: Graph, artifacts: Artifacts) -> PayloadLayout:
    """Mapping from tensors of a graph's call to those of the NPU program, in the converter's order."""
    inputs = range(len(graph.inputs)) if artifacts.inputs is None else artifacts.inputs
    outputs = range(len(graph.outputs)) if artifacts.outputs is None else artifacts.outputs
    return PayloadLayout(
        inputs=tuple(TensorSlot(i, i in graph.channels_last_inputs) for i in inputs),
        outputs=tuple(TensorSlot(i, i in graph.channels_last_outputs) for i in outputs),
        num_arguments=len(graph.inputs),
        version=artifacts.payload_version,
    )


def align(size: int) -> int:
    """`size` in bytes rounded up to the payload's alignment."""
    return (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def kind_of(microcode: bytes) -> Kind:
    """Return the kind of program in a microcode section, from its first word."""
    magic = int.from_bytes(microcode[:4], "little") if len(microcode) >= 4 else None
    if magic == SILICON_MAGIC:
        return "silicon"
    if magic == REFERENCE_MAGIC:
        return "reference"
    found = f"starts with 0x{magic:08x}" if magic is not None else f"has only {len(microcode)} bytes"
    raise bad_payload(
        f"The program inside the payload {found}, "
        "so it is neither microcode of an NPU nor a micronpu reference container."
    )


def pack(layout: PayloadLayout, artifacts: Artifacts) -> bytes:
    """Return the payload's bytes; the length is a multiple of 16.

    Raises:
        PayloadError: the size words of the microcode do not match the sections.
    """
    _check_sizes(artifacts.microcode, len(artifacts.weights))
    header = bytes((len(layout.inputs), len(layout.outputs), layout.num_arguments))
    slots = layout.inputs + layout.outputs
    header += bytes(slot.channels_last for slot in slots) + bytes(slot.index for slot in slots)
    header += bytes((layout.version,))
    sections = b"".join(map(_padded, (header, artifacts.microcode, artifacts.weights, artifacts.kernels)))
    if artifacts.kind == "silicon" and artifacts.versions:
        sections += _pack_versions(artifacts.versions)
    return sections


def parse(data: bytes) -> Payload:
    """Parse a payload.

    Args:
        data: the delegate blob; bytes after the kernels' padding count as kernels.

    Raises:
        PayloadError: truncated, inconsistent, of another version, or of unknown kind.
    """
    if len(data) < 4:
        raise _truncated(len(data), 4)
    count_in, count_out, num_arguments = data[0], data[1], data[2]
    count = count_in + count_out
    if len(data) < 4 + 2 * count:
        raise _truncated(len(data), 4 + 2 * count)
    flags, indices, version = data[3 : 3 + count], data[3 + count : 3 + 2 * count], data[3 + 2 * count]
    for position, flag in enumerate(flags):
        if flag > 1:
            raise bad_payload(
                f"Tensor {position} of the payload has format {flag}, but only 0 and 1 (channels last) exist."
            )
    slots = tuple(TensorSlot(index, bool(flag)) for index, flag in zip(indices, flags, strict=True))
    layout = PayloadLayout(slots[:count_in], slots[count_in:], num_arguments, version)

    start = layout.header_size
    kind = kind_of(data[start : start + 4])
    if len(data) < start + 32:
        raise _truncated(len(data), start + 32)
    microcode_size, weights_size = struct.unpack_from("<2I", data, start + 24)
    weights_start = start + align(microcode_size)
    kernels_start = weights_start + align(weights_size)
    if microcode_size < 32:
        raise bad_payload(
            f"The microcode in the payload names {microcode_size} bytes as its size, fewer than its head has."
        )
    if len(data) < kernels_start:
        raise _truncated(len(data), kernels_start)
    end, versions = _parse_versions(data, kernels_start) if kind == "silicon" else (len(data), {})
    return Payload(
        layout,
        kind,
        microcode=data[start : start + microcode_size],
        weights=data[weights_start : weights_start + weights_size],
        kernels=data[kernels_start:end],
        versions=versions,
    )


def _pack_versions(versions: Mapping[str, str]) -> bytes:
    text = json.dumps(dict(sorted(versions.items()))).encode()
    return _padded(text) + struct.pack("<4s3I", _VERSIONS_MAGIC, len(text), zlib.crc32(text), 0)


def _parse_versions(data: bytes, kernels_start: int) -> tuple[int, dict[str, str]]:
    """Return the end of the kernels, and the versions after them.

    Kernels may end in any bytes, so only a record with a valid checksum counts.
    """
    none: tuple[int, dict[str, str]] = len(data), {}
    if len(data) - kernels_start < ALIGNMENT or data[-ALIGNMENT : 4 - ALIGNMENT] != _VERSIONS_MAGIC:
        return none
    size, crc = struct.unpack_from("<2I", data, len(data) - ALIGNMENT + 4)
    end = len(data) - ALIGNMENT - align(size)
    if end < kernels_start or zlib.crc32(data[end : end + size]) != crc:
        return none
    try:
        versions = parse_json(data[end : end + size])
    except ValueError:
        return none
    return (end, {str(k): str(v) for k, v in versions.items()}) if isinstance(versions, dict) else none


def _check_sizes(microcode: bytes, weights_size: int) -> None:
    """Check words 6 and 7, through which the board finds the weights and kernels."""
    if len(microcode) < 32:
        raise PayloadError(
            f"The converter's microcode has {len(microcode)} bytes, but its head alone takes 32.",
            hint="check the converter's log, the conversion was probably cut short",
        )
    words = struct.unpack_from("<2I", microcode, 24)
    if words != (len(microcode), weights_size):
        raise PayloadError(
            f"The converter's microcode announces {words[0]} bytes of microcode and {words[1]} bytes of weights, "
            f"but it came with {len(microcode)} and {weights_size}.",
            hint="use a converter version that micronpu lists in `micronpu doctor`",
        )


def _padded(section: bytes) -> bytes:
    return section + bytes(align(len(section)) - len(section))


def _truncated(found: int, needed: int) -> PayloadError:
    return PayloadError(
        f"The payload is truncated: it has {found} bytes, but its header needs {needed}.",
        hint="copy the .pte file again or " + COMPILE_AGAIN,
    )


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
    """Verify a reference container and return its model; both may be followed by more bytes, which are ignored."""
    if kind_of(microcode) == "silicon":
        raise PayloadError(
            "The payload holds microcode for a real chip, which the host cannot execute.",
            hint="compile with the reference converter to run on the host, or run this program on the board",
        )
    if len(microcode) < RECORD_SIZE:
        raise bad_payload(
            f"The reference container is truncated: its record has {len(microcode)} bytes instead of {RECORD_SIZE}."
        )
    words = _RECORD.unpack_from(microcode)
    _, version, num_inputs, num_outputs, crc, num_operators, record_size, size, head_crc = words
    # Check the version first: another version may store its checksum elsewhere.
    if version != CONTAINER_VERSION:
        raise bad_payload(
            f"The reference container has format version {version}, but this micronpu reads {CONTAINER_VERSION}."
        )
    if zlib.crc32(microcode[:32]) != head_crc or record_size != RECORD_SIZE:
        raise bad_payload("The record of the reference container is corrupted: its checksum is wrong.")
    if len(weights) < size:
        raise PayloadError(
            f"The LiteRT model in the reference container is truncated: {len(weights)} of {size} bytes are there.",
            hint="copy the .pte file again or " + COMPILE_AGAIN,
        )
    model = bytes(weights[:size])
    if zlib.crc32(model) != crc:
        raise PayloadError(
            "The LiteRT model in the reference container is corrupted: "
            f"its CRC-32 is {zlib.crc32(model):08x} instead of {crc:08x}.",
            hint="copy the .pte file again or " + COMPILE_AGAIN,
        )
    return ReferenceContainer(model, num_inputs, num_outputs, num_operators, crc)


def content_of(blob: bytes) -> str:
    """Describe the content of named data or of a section, from its first bytes."""
    if blob[4:8] == b"TFL3":
        return "LiteRT model"
    if blob[4:8] == b"TOSA":
        return "TOSA graph"
    try:
        return f"integer graph for the host: {content_of(parse(blob).weights)}"
    except PayloadError:
        return ""
