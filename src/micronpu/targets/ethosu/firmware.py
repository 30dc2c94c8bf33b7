"""What the delegate of an Ethos-U asks of the firmware."""

from __future__ import annotations

from collections.abc import Mapping

from micronpu.targets.ethosu.payload import configuration, parse
from micronpu.targets.firmware import Firmware


class EthosUFirmware(Firmware):
    """ExecuTorch's `EthosUBackend` and Arm's core driver."""

    handle_bytes = 4
    build_options = ("-DEXECUTORCH_BUILD_ARM_BAREMETAL=ON",)
    whole_libraries = ("executorch_delegate_ethos_u",)
    cmake = (
        "# Arm's core driver for the Ethos-U, ethosu_core_driver, as your board's software builds it.\n"
        'set({upper}_ETHOSU_DRIVER "" CACHE STRING "Libraries of the driver")\n'
        "target_link_libraries({name}_app PRIVATE ${{{upper}_ETHOSU_DRIVER}})\n"
    )
    zephyr = ("CONFIG_ETHOS_U=y",)
    packs = ("    - pack: ARM::ethos-u-core-driver",)
    components = (
        "    - component: ARM::Machine Learning:NPU Support:Ethos-U Driver",
        "    - component: Machine Learning:ExecuTorch:Backend EthosU",
    )
    build_note = (
        "- **Ethos-U**: the firmware initialises {accelerator} with Arm's core driver before the first run, and places "
        "memories as the mode {memory_mode} says: nothing checks that on the board."
    )

    def temporary(self, payload: bytes) -> tuple[int, str]:
        return parse(payload).scratch_size, ""

    def has_platform(self, accelerator: str) -> bool:
        return accelerator.startswith(("ethos-u55", "ethos-u85"))

    def accelerator(self, payload: bytes, options: Mapping[str, str]) -> str:
        if options.get("target"):
            return options["target"]
        found = configuration(parse(payload).commands)
        return f"ethos-{found[0].lower()}-{found[1]}" if found is not None else ""
