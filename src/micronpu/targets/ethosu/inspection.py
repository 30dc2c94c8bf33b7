"""What `micronpu inspect` says of an Ethos-U payload."""

from __future__ import annotations

import struct

from micronpu.errors import PayloadError
from micronpu.report.inspection import Delegate, Section, Tensor
from micronpu.targets.ethosu import payload as ethosu

_PRODUCTS = {0: "U55", 1: "U65", 2: "U85"}
_REGIONS = {0: "weights", 1: "scratch", 2: "fast scratch"}


def inspect(backend: str, blob: bytes) -> Delegate:
    """Sections and tensors of a payload.  Where it cannot be read, its sections and why."""
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
