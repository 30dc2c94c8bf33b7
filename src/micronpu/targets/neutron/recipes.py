"""Names of the recipes for Neutron."""

from __future__ import annotations

from executorch.export import RecipeType


class NeutronRecipeType(RecipeType):
    """Recipes for NXP eIQ Neutron."""

    INT8 = "micronpu_neutron_int8"
    INT8_QAT = "micronpu_neutron_int8_qat"

    @classmethod
    def get_backend_name(cls) -> str:
        return "micronpu_neutron"
