"""Names of the recipes for a core."""

from __future__ import annotations

from executorch.export import RecipeType


class CortexMRecipeType(RecipeType):
    """Recipes for a Cortex-M core with CMSIS-NN, alone or with an NPU."""

    INT8 = "micronpu_cortexm_int8"
    INT8_QAT = "micronpu_cortexm_int8_qat"

    @classmethod
    def get_backend_name(cls) -> str:
        return "micronpu_cortexm"
