"""Export recipes for ``executorch.export``: one per NPU backend and for the cores beside them, and one per chip.

session = executorch.export.export(model, [(x,)], micronpu.recipes.get_imxrt700_recipe(calibration=batches))
session.save_to_pte("kws.pte")

Importing this package registers its providers with ExecuTorch; from then on `ExportRecipe.get_recipe` knows
`NeutronRecipeType`, `EthosURecipeType` and `CortexMRecipeType`.  It imports torch, which `import micronpu` does not.
"""

from __future__ import annotations

from executorch.export import recipe_registry

from micronpu.recipes.combine import combine
from micronpu.recipes.files import FILES, FilesStage, stages_with_files
from micronpu.recipes.lowering import CorePartitioner, OutliningPartitioner
from micronpu.recipes.providers import (
    BY_BACKEND,
    PROVIDERS,
    get_chip_recipe,
    get_corstone300_recipe,
    get_corstone320_recipe,
    get_imx93_recipe,
    get_imxrt700_recipe,
)
from micronpu.targets.cortexm.compat import CortexMRecipeType
from micronpu.targets.ethosu.compat import EthosURecipeType
from micronpu.targets.neutron.compat import NeutronRecipeType

__all__ = [
    "ArmRecipeType",
    "NXPRecipeType",
    "CortexMRecipeProvider",
    "CortexMRecipeType",
    "EthosURecipeProvider",
    "EthosURecipeType",
    "NeutronRecipeProvider",
    "NeutronRecipeType",
    "combine",
    "get_chip_recipe",
    "get_corstone300_recipe",
    "get_corstone320_recipe",
    "get_imx93_recipe",
    "get_imxrt700_recipe",
    "CorePartitioner",
    "OutliningPartitioner",
    "FILES",
    "FilesStage",
    "stages_with_files",
]

ArmRecipeType, NXPRecipeType = EthosURecipeType, NeutronRecipeType
"""Names of ExecuTorch's own recipe types."""

NeutronRecipeProvider = BY_BACKEND["neutron"]
EthosURecipeProvider = BY_BACKEND["ethos-u"]
CortexMRecipeProvider = BY_BACKEND["cortex-m"]

for _provider in PROVIDERS:
    recipe_registry.register_backend_recipe_provider(_provider)
