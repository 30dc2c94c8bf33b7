"""Recipes for chips: the NPU and the core beside it."""

from __future__ import annotations

from typing import Any, Literal, get_args

from executorch.export import ExportRecipe

from micronpu.base.errors import OptionError
from micronpu.quantize.config import Activations
from micronpu.recipes.providers import RecipeOptions, device_recipe, split_options, unknown_options
from micronpu.targets.registry import BACKENDS, find_target, options_for

Quantization = Literal["int8", "int8_qat", "int16", "int16_qat"]
"""Activations of 8 or 16 bits; quantized after or during training (QAT). Weights are int8."""


def get_imxrt700_recipe(quantization: Quantization = "int8", **options: Any) -> ExportRecipe:
    """NXP i.MX RT700: Neutron, and CMSIS-NN on the Cortex-M33; see `get_chip_recipe`."""
    return get_chip_recipe("imxrt700", quantization, **options)


def get_corstone300_recipe(quantization: Quantization = "int8", **options: Any) -> ExportRecipe:
    """Arm Corstone-300: Ethos-U55, and CMSIS-NN on the Cortex-M55; see `get_chip_recipe`."""
    return get_chip_recipe("corstone300", quantization, **options)


def get_corstone320_recipe(quantization: Quantization = "int8", **options: Any) -> ExportRecipe:
    """Arm Corstone-320: Ethos-U85, and CMSIS-NN on the Cortex-M85; see `get_chip_recipe`."""
    return get_chip_recipe("corstone320", quantization, **options)


def get_imx93_recipe(quantization: Quantization = "int8", **options: Any) -> ExportRecipe:
    """NXP i.MX 93: Ethos-U65, and ExecuTorch's portable kernels on the Cortex-A55; see `get_chip_recipe`."""
    return get_chip_recipe("imx93", quantization, **options)


def get_chip_recipe(target: str, quantization: Quantization = "int8", **options: Any) -> ExportRecipe:
    """Return the recipe for a target; programs are the same as those of `micronpu.compile`.

    Args:
        target: see ``micronpu targets``, or the path of a chip file.
        quantization: "int8", "int8_qat", "int16" or "int16_qat".
        options: fields of `RecipeOptions` and of the options of the NPU's backend, `NeutronOptions` or `EthosUOptions`,
            except the chip.

    Raises:
        OptionError: there is no such target or option, or a value is invalid.
    """
    if quantization not in get_args(Quantization):
        raise OptionError(f"`quantization` is {quantization!r}.", hint=f"one of {', '.join(get_args(Quantization))}")
    chosen = find_target(target)
    backend = BACKENDS[chosen.backend]
    (common, own), unknown = split_options(options, RecipeOptions, backend.options)
    silicon = next((name for name in ("silicon", backend.options.silicon_key) if name in options), None)
    if silicon is not None:
        raise OptionError(
            f"The recipe for {chosen.name} was given `{silicon}`, which the chip decides.",
            hint="leave it out, or another chip",
        )
    if unknown:
        raise unknown_options(chosen.name, list(unknown), RecipeOptions, backend.options)
    device = backend.device(options_for(chosen, given=own), chosen.name, chosen.core)
    checked, is_qat = RecipeOptions(**common), quantization.endswith("_qat")
    checked.check(f'{chosen.name} with "{quantization}"', is_qat)
    activations: Activations = "int16" if quantization.startswith("int16") else "int8"
    return device_recipe(f"{chosen.name}_{quantization}", device, checked, is_qat, activations)
