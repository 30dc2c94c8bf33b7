"""`micronpu inspect` for an Ethos-U payload."""

from __future__ import annotations

from micronpu.base.errors import PayloadError
from micronpu.report.inside import InspectedDelegate, Section, Tensor
from micronpu.targets.ethosu import payload as ethosu
from micronpu.targets.ethosu.stream import accelerator_of

_REGIONS = {0: "weights", 1: "scratch", 2: "fast scratch", 3: "inputs", 4: "outputs"}


def inspect(backend: str, blob: bytes) -> InspectedDelegate:
    """Return the sections and tensors of a payload; if it cannot be read, its sections and the reason."""
    blocks = tuple(ethosu.blocks(blob))
    sections = tuple(
        Section(b.name, len(b.data), f"stands elsewhere as {str(b.data, 'ascii', 'replace')}" if b.external else "")
        for b in blocks
    )
    try:
        payload = ethosu.parse(blob)
    except PayloadError as error:
        return InspectedDelegate(backend, len(blob), sections=sections, objection=str(error))
    tensors = tuple(
        Tensor(
            f"{kind} {i}",
            tensor.shape,
            f"{tensor.element_size} byte{'' if tensor.element_size == 1 else 's'}",
            f"{_REGIONS.get(tensor.region, f'region {tensor.region}')} + {tensor.address}",
        )
        for kind, side in (("input", payload.inputs), ("output", payload.outputs))
        for i, tensor in enumerate(side)
    )
    kind = f"{_accelerator(payload.commands)}, {payload.scratch_size:,} bytes of scratch memory"
    return InspectedDelegate(backend, len(blob), kind, sections, tensors)


def _accelerator(commands: bytes) -> str:
    """The accelerator that a command stream was compiled for."""
    try:
        _, family, macs = accelerator_of(commands).split("-")
    except PayloadError:
        return "an Ethos-U"
    return f"Ethos-{family.upper()} with {macs} MACs per cycle"
