"""The Cortex-M backend, for a core without NPU."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import util
from typing import TYPE_CHECKING

from micronpu.chips import Chip
from micronpu.chips.core import CORES, Core, find_core
from micronpu.targets.backend import Backend, sentences
from micronpu.targets.firmware import KernelLibrary

if TYPE_CHECKING:
    from executorch.exir import EdgeProgramManager
    from executorch.export import RecipeType

    from micronpu.targets.cortexm.device import CortexMDevice
    from micronpu.targets.cortexm.options import CortexMOptions


class CortexM(Backend):
    """An Arm Cortex-M without an NPU: CMSIS-NN in int8."""

    name = "cortex-m"
    title = "Cortex-M"
    usual = "cortex-m33"

    @property
    def options(self) -> type[CortexMOptions]:
        from micronpu.targets.cortexm.options import CortexMOptions

        return CortexMOptions

    def has(self, chip: Chip) -> bool:
        return chip.npu is None

    def silicon(self, chip: Chip) -> str:
        return find_core(chip.core).name

    def bare(self) -> Mapping[str, str]:
        return dict.fromkeys(CORES, "CMSIS-NN in int8 on the core, on any chip")

    def core_beside(self, silicon: str) -> str:
        return silicon

    def missing(self) -> tuple[str, str]:
        there = util.find_spec("executorch") and util.find_spec("executorch.backends.cortex_m")
        return (
            ("", "")
            if there
            else ("executorch.backends.cortex_m, the operators of CMSIS-NN", 'pip install "executorch==1.5.*"')
        )

    def device(self, options: CortexMOptions, name: str = "", core: Core | None = None) -> CortexMDevice:
        from micronpu.targets.cortexm.device import CortexMDevice

        return CortexMDevice(options, name, core)

    def core_device(self, core: Core) -> CortexMDevice:
        return self.device(self.options(silicon=core.name))

    def kernels(self) -> KernelLibrary:
        from micronpu.targets.cortexm.kernels import CmsisNnKernels

        return CmsisNnKernels()

    def plan_scratch(self, edge: EdgeProgramManager) -> None:
        from micronpu.targets.cortexm.device import plan_scratch

        for method in sorted(edge.methods):
            plan_scratch(edge.exported_program(method).graph_module)

    def rewrites(self) -> dict[str, dict[str, str]]:
        from micronpu.targets.cortexm.rewrites import REWRITES

        return {"Rewrites of an operator that a Cortex-M core has no kernel for": sentences(REWRITES)}

    def recipes(self) -> type[RecipeType]:
        from micronpu.targets.cortexm.compat import CortexMRecipeType

        return CortexMRecipeType
