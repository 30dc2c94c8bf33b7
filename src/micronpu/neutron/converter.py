"""The Neutron toolchain as an interface, and the open reference implementation of it.

A converter turns the LiteRT model of one partition into the three sections of a `NeutronBackend` payload. The vendor's
converter (`sdk`) makes programs for silicon. `ReferenceConverter` needs no vendor's tool: it wraps the LiteRT model in
an open container that the host plug-in runs; a device refuses it, because its magic number is not Neutron's.

The container's record, 64 bytes, little-endian 32-bit words:

    0   magic 0x52504E4D ("MNPR")          5   number of operators
    1   format version, 1                  6   size of this record, 64
    2   number of inputs                   7   size of the LiteRT model in bytes
    3   number of outputs                  8   CRC-32 of words 0 to 7
    4   CRC-32 of the LiteRT model         9 to 15  zero

Words 6 and 7 are where Neutron microcode keeps these two sizes, so that a payload of either kind is walked alike.
CRC-32 is zlib's (polynomial 0xEDB88320). Standard library only.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol, runtime_checkable

from micronpu import _flatbuffer
from micronpu.errors import ModelError, OptionError, PayloadError
from micronpu.neutron.payload import REFERENCE_MAGIC, Kind, kind_of

CONTAINER_VERSION = 1
RECORD_SIZE = 64
"""Bytes of the reference container's record."""

_RECORD = struct.Struct("<9I28x")
DEFAULT_TIMEOUT = 600.0
"""Seconds; the longest conversion that has been reported in public took 154."""

_TARGET = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_COMPILE_AGAIN = "compile the model again with this version of micronpu"


@dataclass(frozen=True)
class ConverterOptions:
    """What a converter is asked to do.

    Attributes:
        target: name of the chip as the converter knows it, such as "imxrt700".
        extra_flags: handed to the vendor's converter as they are; each is one argument.
        fetch_constants_to_sram: prefetch weights from external memory into SRAM.
        dump_kernel_selection_code: also give the C code that names the kernels in use.
        profiling: ask for a program that takes the time of its kernels; its payload has version 1.
        timeout: seconds after which a converter that runs in a process of its own is ended.
        sdk_version: version of the vendor's SDK whose firmware the device has, or "" where any will do; a converter of
            another version is refused.

    Raises:
        OptionError: a value of the wrong type or form.
    """

    target: str
    extra_flags: tuple[str, ...] = ()
    fetch_constants_to_sram: bool = False
    dump_kernel_selection_code: bool = False
    profiling: bool = False
    timeout: float = DEFAULT_TIMEOUT
    sdk_version: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.target, str) or not _TARGET.fullmatch(self.target):
            raise OptionError(
                f"The converter option target is {self.target!r}, but it must be the name of a chip.",
                hint='a name such as "imxrt700"; `micronpu targets` lists them',
            )
        if not isinstance(self.extra_flags, tuple) or not all(isinstance(f, str) and f for f in self.extra_flags):
            raise OptionError(
                f"The converter option extra_flags is {self.extra_flags!r}, but it must be a tuple of filled strings.",
                hint='for instance extra_flags=("--verbose",)',
            )
        for name in ("fetch_constants_to_sram", "dump_kernel_selection_code", "profiling"):
            if not isinstance(getattr(self, name), bool):
                raise OptionError(
                    f"The converter option {name} is {getattr(self, name)!r}, but it must be True or False.",
                    hint=f"{name}=True or {name}=False",
                )
        if isinstance(self.timeout, bool) or not isinstance(self.timeout, (int, float)) or not 0 < self.timeout < 1e6:
            raise OptionError(f"The converter option timeout is {self.timeout!r}; it is a positive number of seconds.")
        if not isinstance(self.sdk_version, str):
            raise OptionError(
                f'The converter option sdk_version is {self.sdk_version!r}; it is a string such as "3.2.0".'
            )


@dataclass(frozen=True)
class NeutronArtifacts:
    """What a converter gives back: the sections of the payload.

    Attributes:
        microcode, weights, kernels: raw sections, without padding.
        kind: "silicon" or "reference".
        versions: name and version of the tools that made them.  Those of silicon programs travel in the payload.
        inputs: for every input of the NPU program, in its order, which input of the LiteRT model it is; None where the
            converter kept them as they are.
        outputs: the same for outputs; together each output of the model exactly once.
        payload_version: 0, or 1 where the program has a profile and a debug buffer.
        cycles: the converter's own estimate for the NPU alone, or None where it gives none.
        warnings: what it warned of, in its own words.
        kernel_selection: C code that names the kernels in use, "" unless asked for and known to the converter.
        log: everything that it printed.
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
    log: str = ""

    def __post_init__(self) -> None:
        if kind_of(self.microcode) != self.kind:
            raise PayloadError(
                f"The converter says that its program is {self.kind}, but the microcode is {kind_of(self.microcode)}.",
                hint="report this to the author of the converter",
            )
        # A frozen value must not change through the dictionary that its maker still holds.
        object.__setattr__(self, "versions", MappingProxyType(dict(self.versions)))


@runtime_checkable
class NeutronConverter(Protocol):
    """Makes the NPU program of one partition."""

    @property
    def name(self) -> str:
        """Short name that users select it by, such as "reference" or "sdk"."""

    def convert(self, litert_model: bytes, options: ConverterOptions) -> NeutronArtifacts:
        """Convert a LiteRT flatbuffer with one subgraph.

        Raises:
            ModelError: the converter cannot take this model.
            ConverterError: the tool is missing, crashed, timed out or gave a program that cannot be right.
        """


@dataclass(frozen=True)
class ReferenceContainer:
    """The open container, read back and verified.

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


class ReferenceConverter:
    """Wraps the LiteRT model in the open container; for the host only, no vendor's tool needed.

    The options' target and flags do not change the result: the functional simulator computes what every Neutron
    computes.
    """

    name = "reference"

    def convert(self, litert_model: bytes, options: ConverterOptions) -> NeutronArtifacts:
        """See `NeutronConverter.convert`; deterministic.

        Raises:
            ModelError: not a LiteRT flatbuffer with exactly one subgraph.
        """
        return reference_artifacts(litert_model, *_counts(litert_model))


def reference_artifacts(model: bytes, num_inputs: int, num_outputs: int, num_operators: int) -> NeutronArtifacts:
    """A model of the host's simulator in the open container, as sections of a payload.

    Args:
        model: LiteRT or TOSA flatbuffer with the numbers of inputs, outputs and operators given.
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
    return NeutronArtifacts(
        microcode=record,
        weights=bytes(model),
        kernels=b"",
        kind="reference",
        versions={"reference container": str(CONTAINER_VERSION)},
    )


def read_container(microcode: bytes, weights: bytes) -> ReferenceContainer:
    """Verify a reference container and give its model.

    Args:
        microcode: the 64-byte record; more bytes are ignored.
        weights: the LiteRT model; more bytes (padding) are ignored.

    Raises:
        PayloadError: microcode of real silicon, another format version, truncated, or a checksum that does not match.
    """
    if kind_of(microcode) == "silicon":
        raise PayloadError(
            "The payload holds Neutron microcode for a real chip, which the host cannot execute.",
            hint="compile with the reference converter to run on the host, or run this program on the device",
        )
    if len(microcode) < RECORD_SIZE:
        raise PayloadError(
            f"The reference container is truncated: its record has {len(microcode)} bytes instead of {RECORD_SIZE}.",
            hint=_COMPILE_AGAIN,
        )
    words = _RECORD.unpack_from(microcode)
    _, version, num_inputs, num_outputs, crc, num_operators, record_size, size, head_crc = words
    # The version comes first: another version may keep its checksum elsewhere.
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


def _counts(model: bytes) -> tuple[int, int, int]:
    """Numbers of inputs, outputs and operators of a LiteRT model's only subgraph."""
    # Field numbers of tflite schema v3: Model.subgraphs 2; SubGraph.inputs 1, outputs 2, operators 3.
    try:
        subgraphs = _flatbuffer.root(model, b"TFL3").vector(2)
        if subgraphs.length != 1:
            raise ModelError(
                f"The LiteRT model of a Neutron partition has {subgraphs.length} subgraphs, but it must have one.",
                hint="convert a model without control flow",
            )
        graph = subgraphs.table(0)
        inputs, outputs, operators = (graph.vector(number).length for number in (1, 2, 3))
    except _flatbuffer.CorruptFlatbufferError as error:
        raise ModelError(
            f"The reference converter was given bytes that are not a LiteRT model: {error}.",
            hint="pass the contents of a .tflite file",
        ) from error
    return inputs, outputs, operators
