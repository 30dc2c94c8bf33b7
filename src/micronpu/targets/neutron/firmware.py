"""Firmware requirements of the Neutron delegate."""

from __future__ import annotations

import struct

from micronpu.base.errors import PayloadError
from micronpu.base.flatbuffer import CorruptFlatbufferError
from micronpu.container.litert_view import read_model
from micronpu.container.payload import SILICON_MAGIC, align, parse
from micronpu.container.reference import read_container
from micronpu.targets.firmware import Firmware

_MCUXPRESSO = """

### A project of the MCUXpresso SDK, for the MIMXRT700-EVK

The steps of ExecuTorch's page on its MCUXpresso example, with this folder instead of its model; not run here.

```sh
pip install west
west init -m https://github.com/nxp-mcuxpresso/mcuxsdk-manifests.git mcuxpresso-sdk
(cd mcuxpresso-sdk && west update_board --set board mimxrt700evk)
export SdkRootDirPath=$PWD/mcuxpresso-sdk/mcuxsdk
export ARMGCC_DIR=/path/to/arm-gnu-toolchain           # the release that the SDK names
export NEUTRON_LIB_DIR=/path/to/eiq_neutron_sdk/libs   # of the converter's own version, not the SDK's
```

1. Start from `examples/nxp/mcuxpresso/imxrt700/executorch_cifarnet` of ExecuTorch's main of September 2026, or from
   the SDK's example `executorch_cifarnet`: they bring the board's clocks and console.
2. Take the example's model and `main` out. Add the `.c`, `.cpp` and `.S` files of this folder, and the sections of
   `micronpu_sections.ld` to the example's linker script. Its start-up code stays; leave `board/` out.
3. Call `neutronInit()` and then `main.cpp`'s `main`, or your own code with `micronpu.h`. Link `libNeutronDriver.a` and
   `libNeutronFirmware.a` from `NEUTRON_LIB_DIR`.
4. Build, load the `.elf` with J-Link (`-Device MIMXRT798S_M33_0`, SWD), and read the console.
   The last line is `PASS`."""


class NeutronFirmware(Firmware):
    """`NeutronBackend` of ExecuTorch's `backends/nxp/runtime`, and NXP's driver and firmware."""

    cmake = (
        "# NeutronBackend of ExecuTorch's backends/nxp/runtime with NXP's driver and firmware; see README.md.\n"
        'set({upper}_NEUTRON_LIBRARIES "" CACHE STRING "The delegate, NXP\'s driver and firmware")\n'
        "target_link_libraries({name}_app PRIVATE ${{{upper}_NEUTRON_LIBRARIES}})\n"
    )
    sections = (
        " * A Neutron of class C does not read flash: convert with fetch_constants_to_sram, or place it in SRAM.",
    )
    laptop_only = (
        "Its Neutron part is a reference container, made without NXP's converter: a board refuses it. Sizes of memory "
        "are exact for the host part and a minimum for Neutron's; everything else here shows what the folder of a "
        "program for silicon looks like. Compile with `--converter sdk` where NXP's eIQ Neutron SDK is installed."
    )

    linux_note = (
        "The delegate `NeutronBackend` of ExecuTorch needs NXP's Neutron driver and firmware for Linux, which come "
        "with NXP's board support package, of the very version of the converter that made the program. How "
        "ExecuTorch is built with them is in NXP's documentation of that package."
    )

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

    def section(self, on_device: bool) -> str:
        version = "The converter's version is in the payload: `micronpu inspect model.pte`. " if on_device else ""
        return (
            "## Neutron\n\nThe firmware needs, of NXP's MCUXpresso SDK (`middleware/eiq`): the delegate "
            "`NeutronBackend` of ExecuTorch (`backends/nxp/runtime/NeutronBackend.cpp`), NXP's Neutron driver and the "
            "Neutron firmware, **of the version of the converter that made the program**: with another version "
            f"results are wrong, without an error. {version}Call `neutronInit()` before the first run. On i.MX "
            "RT700 the NPU does not read flash: compile with `fetch_constants_to_sram`, or copy the program to SRAM. "
            "`dump_kernel_selection_code` writes the source that keeps only the NPU kernels in use."
            f"{_MCUXPRESSO if on_device else ''}"
        )
