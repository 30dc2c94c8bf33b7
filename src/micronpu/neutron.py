"""NXP eIQ Neutron under the names that ExecuTorch users know."""

from micronpu.base.lazy import lazily

_COMPAT = (
    *("NeutronHWVersion", "RemoveAdditionalQDQClustersPass", "RemoveIOQuantOpsPass", "core_aten_ops_exception_list"),
    "default_preserve_ops",
)
_RECIPES = "NeutronRecipeType.INT8 of micronpu.recipes, its options as keyword arguments; see docs/recipes.md"
_ELSEWHERE = {name: f"from micronpu.compat import {name}" for name in _COMPAT} | dict.fromkeys(
    ("NXPRecipeType", "NXPRecipeProvider", "NeutronRecipeConfig"), _RECIPES
)

__all__, __dir__, __getattr__ = lazily(__name__, __file__, _ELSEWHERE)
