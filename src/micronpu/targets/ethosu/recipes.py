"""Names of the recipes for Ethos-U."""

from __future__ import annotations

from executorch.export import RecipeType


class EthosURecipeType(RecipeType):
    """Recipes for Arm Ethos-U; int16 applies to activations, weights are int8 in any case."""

    INT8 = "micronpu_ethosu_int8"
    INT8_QAT = "micronpu_ethosu_int8_qat"
    INT16 = "micronpu_ethosu_int16"
    INT16_QAT = "micronpu_ethosu_int16_qat"

    @classmethod
    def get_backend_name(cls) -> str:
        return "micronpu_ethosu"
