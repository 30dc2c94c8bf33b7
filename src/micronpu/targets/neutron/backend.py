"""The Neutron backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from micronpu.chips import Chip
from micronpu.chips.core import Core
from micronpu.targets.backend import Backend, sentences
from micronpu.targets.neutron import BACKEND
from micronpu.targets.neutron.target_spec import NEUTRON, NeutronNpu

if TYPE_CHECKING:
    from executorch.export import RecipeType

    from micronpu.report.inside import InspectedDelegate
    from micronpu.targets.neutron.device import NeutronDevice
    from micronpu.targets.neutron.firmware import NeutronFirmware
    from micronpu.targets.neutron.options import NeutronOptions


class Neutron(Backend):
    """NXP eIQ Neutron."""

    name = NEUTRON
    title = "Neutron"
    usual = "imxrt700"
    backend_id = BACKEND
    packages = ("eiq_neutron_sdk",)

    @property
    def options(self) -> type[NeutronOptions]:
        from micronpu.targets.neutron.options import NeutronOptions

        return NeutronOptions

    def silicon(self, chip: Chip) -> str:
        NeutronNpu.of(chip)
        return chip.file or chip.name

    def device(self, options: NeutronOptions, name: str = "", core: Core | None = None) -> NeutronDevice:
        from micronpu.targets.neutron.device import NeutronDevice

        return NeutronDevice(options, name, core=core)

    def inspect(self, payload: bytes) -> InspectedDelegate:
        from micronpu.host.container_view import inspect

        return inspect(self.backend_id, payload)

    def firmware(self) -> NeutronFirmware:
        from micronpu.targets.neutron.firmware import NeutronFirmware

        return NeutronFirmware()

    def vendor(self) -> Mapping[str, str]:
        return {
            "eiq_neutron_sdk": "NXP's eIQ Neutron SDK, to compile for the chip's Neutron; not needed on this machine"
        }

    def try_vendor(self, package: str) -> str:
        from micronpu.targets.neutron.sdk import try_sdk

        return try_sdk(self.usual)

    def rewrites(self) -> dict[str, dict[str, str]]:
        from micronpu.targets.neutron.rewrites import REWRITES

        return {"Rewrites of an operator that a rule of Neutron refuses": sentences(REWRITES)}

    def recipes(self) -> type[RecipeType]:
        from micronpu.targets.neutron.compat import NeutronRecipeType

        return NeutronRecipeType
