"""The sections of a payload with an open container."""

from __future__ import annotations

from micronpu.container import payload as container
from micronpu.container.payload import read_container
from micronpu.report.inside import InspectedDelegate, Section, Tensor


def inspect(backend: str, blob: bytes) -> InspectedDelegate:
    """Return the sections and tensors of a payload."""
    payload = container.parse(blob)
    kind = "for silicon" if payload.kind == "silicon" else "open reference container, runs on a host only"
    versions = ", ".join(f"{tool} {version}" for tool, version in payload.versions.items())
    layout = payload.layout
    record = ""
    if payload.kind == "reference":
        program = read_container(payload.microcode, payload.weights)  # raises for a damaged container
        record = f"{program.num_operators} LiteRT operators, checksum {program.crc32:08x} is right"
    sections = (
        Section("header", layout.header_size, f"version {layout.version}"),
        Section("microcode", len(payload.microcode), record),
        Section("weights", len(payload.weights), container.content_of(payload.weights)),
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
    return InspectedDelegate(
        backend, len(blob), f"{kind}{f', made by {versions}' if versions else ''}", sections, tensors
    )
