"""What is in a finished `.pte`: the program's border, its host operators, and each delegate's payload.

Reads the file alone: no torch, no ExecuTorch.
"""

from __future__ import annotations

import struct
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from micronpu.container import payload as neutron
from micronpu.errors import PayloadError
from micronpu.runtime.pte import MethodSummary, TensorValue, read_pte
from micronpu.targets.ethosu import payload as ethosu

if TYPE_CHECKING:
    from rich.console import RenderableType

_PRODUCTS = {0: "U55", 1: "U65", 2: "U85"}
_REGIONS = {0: "weights", 1: "scratch", 2: "fast scratch"}


@dataclass(frozen=True)
class Section:
    """A part of a payload: its name, size in bytes, and what else is known of it."""

    name: str
    bytes: int
    detail: str = ""


@dataclass(frozen=True)
class Tensor:
    """An input or output: "input" or "output" with its number, shape, element type or size, and where it stands."""

    name: str
    shape: tuple[int, ...]
    element: str
    place: str = ""


@dataclass(frozen=True)
class Delegate:
    """A delegate call.

    Attributes:
        backend: name by which the runtime looks it up.
        bytes: size of the payload.
        kind: what the payload is made for, one clause.
        sections: its parts in order.
        tensors: inputs and outputs as the payload describes them.
        objection: why the payload cannot be read, or "".
    """

    backend: str
    bytes: int
    kind: str = ""
    sections: tuple[Section, ...] = ()
    tensors: tuple[Tensor, ...] = ()
    objection: str = ""


@dataclass(frozen=True)
class Inspection:
    """A program.

    Attributes:
        name: what to call it.
        bytes: size of the file.
        program_bytes, segment_bytes: sizes of the flatbuffer and of the segments behind it.
        methods: tensors of each method.
        operators: what the host computes, by method.
        delegates: in program order.
        named_data: what delegates look up by key.
    """

    name: str
    bytes: int
    program_bytes: int
    segment_bytes: int
    methods: dict[str, tuple[Tensor, ...]]
    operators: dict[str, tuple[str, ...]]
    delegates: tuple[Delegate, ...]
    named_data: tuple[Section, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __rich__(self) -> RenderableType:
        from micronpu.cli.terminal_inspection import inspection_view

        return inspection_view(self)


def inspect_pte(data: bytes, name: str = "The program") -> Inspection:
    """Takes a program apart.

    Args:
        data: the file's contents.
        name: what to call it in messages, such as the path.

    Raises:
        PayloadError: no `.pte`, truncated, or damaged.  A payload that cannot be read is no error: it says why.
    """
    summary = read_pte(data, name=name)
    return Inspection(
        name=name,
        bytes=len(data),
        program_bytes=summary.program_size,
        segment_bytes=summary.segment_size,
        methods={n: _border(m) for n, m in summary.methods.items()},
        operators={n: m.operators for n, m in summary.methods.items()},
        delegates=tuple(_delegate(backend, blob) for backend, blob in summary.payloads),
        named_data=tuple(Section(key, len(blob), _content(blob)) for key, blob in summary.named_data.items()),
    )


def _border(method: MethodSummary) -> tuple[Tensor, ...]:
    def tensor(kind: str, number: int, value: TensorValue | None) -> Tensor:
        if value is None:
            return Tensor(f"{kind} {number}", (), "no tensor")
        plain = tuple(range(len(value.shape)))
        place = "" if value.dim_order == plain else f"axes in memory {value.dim_order}"
        return Tensor(f"{kind} {number}", value.shape, value.dtype, place)

    return (
        *(tensor("input", i, v) for i, v in enumerate(method.inputs)),
        *(tensor("output", i, v) for i, v in enumerate(method.outputs)),
    )


def _delegate(backend: str, blob: bytes) -> Delegate:
    try:
        if backend == "EthosUBackend":
            return _ethosu(backend, blob)
        if backend == "NeutronBackend":
            return _neutron(backend, blob)
    except PayloadError as error:
        return Delegate(backend, len(blob), objection=str(error))
    return Delegate(backend, len(blob), kind="of a backend that micronpu does not know")


def _ethosu(backend: str, blob: bytes) -> Delegate:
    blocks = tuple(ethosu.blocks(blob))
    sections = tuple(
        Section(b.name, len(b.data), f"stands elsewhere as {b.data.decode('ascii', 'replace')}" if b.external else "")
        for b in blocks
    )
    try:
        payload = ethosu.parse(blob)
    except PayloadError as error:
        return Delegate(backend, len(blob), sections=sections, objection=str(error))
    tensors = tuple(
        Tensor(
            f"{kind} {i}",
            border.shape,
            f"{border.element_size} byte{'' if border.element_size == 1 else 's'}",
            f"{_REGIONS.get(border.region, f'region {border.region}')} + {border.address}",
        )
        for kind, borders in (("input", payload.inputs), ("output", payload.outputs))
        for i, border in enumerate(borders)
    )
    kind = f"{_accelerator(payload.commands)}, {payload.scratch_size:,} bytes of scratch memory"
    return Delegate(backend, len(blob), kind, sections, tensors)


def _accelerator(commands: bytes) -> str:
    """The accelerator that a command stream is for, from the configuration action at its beginning.

    The action is a word with tag 1, then the NPU's config register (log2 of MACs per cycle in bits 0 to 3, the product
    in bits 28 to 31) and its id register (architecture in bits 16 to 31).  Source: the Ethos-U driver and TRM.
    """
    words = struct.unpack_from(f"<{min(len(commands), 64) // 4}I", commands)
    for at, word in enumerate(words[1:-2], 1):
        if word & 0xFF == 1:
            config = words[at + 1]
            product = _PRODUCTS.get(config >> 28, f"product {config >> 28}")
            return f"Ethos-{product} with {1 << (config & 15)} MACs per cycle"
    return "an Ethos-U"


def _neutron(backend: str, blob: bytes) -> Delegate:
    payload = neutron.parse(blob)
    kind = "for silicon" if payload.kind == "silicon" else "open reference container, runs on a host only"
    versions = ", ".join(f"{tool} {version}" for tool, version in payload.versions.items())
    layout = payload.layout
    sections = (
        Section("header", layout.header_size, f"version {layout.version}"),
        Section("microcode", len(payload.microcode)),
        Section("weights", len(payload.weights), _content(payload.weights)),
        Section("kernels", len(payload.kernels)),
    )
    tensors = tuple(
        Tensor(
            f"{kind} {i}",
            (),
            "",
            f"argument {slot.index}" + (", the runtime makes channels last of it" if slot.channels_last else ""),
        )
        for kind, slots in (("input", layout.inputs), ("output", layout.outputs))
        for i, slot in enumerate(slots)
    )
    return Delegate(backend, len(blob), f"{kind}{f', made by {versions}' if versions else ''}", sections, tensors)


def _content(blob: bytes) -> str:
    """What named data or a section holds, as far as its first bytes say."""
    if blob[4:8] == b"TFL3":
        return "LiteRT model"
    if blob[4:8] == b"TOSA":
        return "TOSA graph"
    try:
        return f"integer graph for the host: {_content(neutron.parse(blob).weights)}"
    except PayloadError:
        return ""
