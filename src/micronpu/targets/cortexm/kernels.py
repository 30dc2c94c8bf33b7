"""ExecuTorch's library of kernels that call CMSIS-NN, for the firmware. It is not imported."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

from micronpu.base.installed import package_folder
from micronpu.chips.core import InstructionSet, find_core, runs_cmsis_nn
from micronpu.program.plan import Plan
from micronpu.targets.firmware import KernelLibrary
from micronpu.upstream.pte import CORE_KERNELS

_NAMESPACE = CORE_KERNELS.removesuffix("::")
_LINEAR = "quantized_linear.out"


class CmsisNnKernels(KernelLibrary):
    """Kernels for int8 on a Cortex-M."""

    def __init__(self) -> None:
        super().__init__(
            name=_NAMESPACE,
            target="cortex_m_kernels",
            folder="backends/cortex_m/ops",
            category="Cortex-M",
            build_option="-DEXECUTORCH_BUILD_CORTEX_M=ON",
            build_note="This downloads CMSIS-NN; `-DCMSIS_NN_LOCAL_PATH=PATH` takes sources that are there. For an "
            "ExecuTorch without it, `micronpu board build --cmsis-nn PATH` takes such sources or a `libcmsis-nn.a`.",
            calls=("cmsis-nn",),
            packs=("    - pack: ARM::CMSIS-NN",),
            components=("    - component: ARM::CMSIS:NN Lib",),
        )

    def file_of(self, operator: str) -> str:
        return operator.removesuffix("_nhwc")

    def schemas(self) -> Mapping[str, str]:
        return _schemas()

    def objection(self, plan: Plan, core: str, target: str, instructions: str = "") -> str:
        called = [o for o in plan.operators if o.startswith(CORE_KERNELS)]
        if not called:
            return ""
        if not runs_cmsis_nn(core):
            return f"The program calls {called[0]} of CMSIS-NN, which does not run on the {core} of {target}."
        own, for_helium = find_core(core, instructions), _is_for_helium(plan)
        has_helium = own.instructions is InstructionSet.MVE
        if for_helium is None or has_helium is for_helium:
            return ""
        return (
            f"The program's matrix products are for a core {'with' if for_helium else 'without'} Helium (MVE), and the "
            f"{core} of {target} is one {'with' if has_helium else 'without'}: results would be wrong in silence."
        )


def _is_for_helium(plan: Plan) -> bool | None:
    """True if the fully connected operators have sums of their weights, in the format for Helium.

    Otherwise they have a bias instead. None if the program has no such operators.
    """
    for call in plan.calls:
        if call.operator == f"{CORE_KERNELS}{_LINEAR}":
            return plan.values[call.arguments[_position(_schemas()[_LINEAR], "kernel_sum")]].tensor is not None
    return None


def _position(schema: str, name: str) -> int:
    given = [part for part in schema.partition("(")[2].partition(") ->")[0].split(",") if part.strip() != "*"]
    return next(i for i, part in enumerate(given) if part.split("=")[0].split()[-1] == name)


@functools.lru_cache(maxsize=1)
def _schemas() -> dict[str, str]:
    """Schemas by name, from the source that defines the operators."""
    text = (package_folder("executorch", "backends", "cortex_m", "ops") / "operators.py").read_text(encoding="utf-8")
    found = {}
    for match in re.finditer(r"lib\.define\(((?:\s*\"[^\"]*\"\s*)+),?\s*\)", text):
        schema = "".join(re.findall(r'"([^"]*)"', match[1]))
        found[schema.split("(")[0]] = schema
    return found
