"""Firmware requirements of the Neutron delegate."""

from __future__ import annotations

import struct
from importlib import resources

from micronpu.base.errors import PayloadError
from micronpu.base.flatbuffer import CorruptFlatbufferError
from micronpu.base.parsing import parse_toml
from micronpu.chips import Chip
from micronpu.container.litert_view import read_model
from micronpu.container.payload import SILICON_MAGIC, align, parse, read_container
from micronpu.targets.firmware import Firmware
from micronpu.targets.neutron.target_spec import NEUTRON, no_silicon

_TEXTS = parse_toml((resources.files("micronpu.targets.neutron") / "firmware.toml").read_text(encoding="utf-8"))


class NeutronFirmware(Firmware):
    """`NeutronBackend` of ExecuTorch's `backends/nxp/runtime`, and NXP's driver and firmware."""

    cmake, section = _TEXTS["cmake"], _TEXTS["section"]
    sections = (
        " * A Neutron of class C does not read flash: convert with fetch_constants_to_sram, or place it in SRAM.",
    )
    linux_note = _TEXTS["linux_note"]

    def laptop_only(self, chip: Chip | None) -> str:
        is_neutron = chip is not None and chip.npu is not None and chip.npu.family == NEUTRON
        way = no_silicon(chip) if chip is not None and is_neutron else ""
        text: str = _TEXTS["laptop_only"].format(way=way or _TEXTS["for_silicon"])
        return text.lstrip()

    def temporary(self, payload: bytes) -> tuple[int, str]:
        """Temporary memory that the published `NeutronBackend.cpp` allocates, and a remark on what is unknown.

        The scratch sizes are public words of the microcode's header: 9 scratch, then, depending on the payload's
        version, profile and debug buffer.
        """
        parsed = parse(payload)
        if parsed.kind != "silicon":
            return 0, ""
        microcode, layout = parsed.microcode, parsed.layout
        if len(microcode) < 60 or int.from_bytes(microcode[:4], "little") != SILICON_MAGIC:
            raise PayloadError("The Neutron microcode is too short for its head.", hint="compile the model again")
        words = struct.unpack_from("<15I", microcode)
        sizes = [words[9]] if layout.version == 0 else [words[9], words[10] & 0x7FFFFFFF, words[11]]
        pointers = 4 * len(layout.inputs) + 4 * (len(layout.outputs) + 3)
        sentence = (
            "For Neutron the temporary pool is a lower bound: the runtime transposes tensors that it has to bring into "
            "channels-last order, and the driver's context depends on its version."
        )
        return sum(map(align, [pointers, *sizes])), sentence

    def inside(self, payload: bytes) -> int:
        """Return the peak of a reference container's activations; the scratch of silicon holds its own."""
        parsed = parse(payload)
        if parsed.kind != "reference":
            return 0
        try:
            return read_model(read_container(parsed.microcode, parsed.weights).model).peak_bytes()
        except (CorruptFlatbufferError, PayloadError):
            return 0  # a damaged container is refused where the program is checked, with that message

    def is_for_silicon(self, payload: bytes) -> bool:
        return parse(payload).kind != "reference"
