"""Combination of several recipes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from executorch.export import ExportRecipe

from micronpu.base.arguments import check_type, items
from micronpu.base.errors import OptionError
from micronpu.base.quiet import quiet
from micronpu.quantize.quantizer import StaticQuantizer
from micronpu.recipes.lowering import OutliningPartitioner, core_of, partitioners_of


def combine(recipes: Sequence[ExportRecipe], name: str | None = None) -> ExportRecipe:
    """Combine recipes into one: an NPU, the core beside it, and backends of other packages, in this order.

    The quantizer of the first recipe with one of this package quantizes the whole model: NPU and core use the same int8
    qparams, so that values between them need no requantization.  The core always comes after the NPU.

    Args:
        name: of the result; derived from the recipes' names by default.

    Raises:
        OptionError: two of the recipes conflict.
    """
    check_type("name", name, str, type(None))
    recipes = items("recipes", recipes, "export recipes")
    if not recipes or not all(isinstance(r, ExportRecipe) for r in recipes):
        raise OptionError("`combine` takes a list of export recipes.", hint="combine([of_the_npu, of_the_core])")
    ordered = sorted(recipes, key=_is_for_a_core)
    _check_one_chip(ordered)
    _check_quantization(ordered)
    own = [r for r in ordered if any(isinstance(q, StaticQuantizer) for q in _quantizers(r))]
    try:
        with quiet():
            parts = [replace(r, quantization_recipe=None) if any(r is o for o in own[1:]) else r for r in ordered]
            return ExportRecipe.combine(parts, name)
    except ValueError as error:
        raise OptionError(
            f"The recipes {_names(ordered)} disagree: {str(error).rstrip('.')}.",
            hint="one recipe alone, or options that fit both",
        ) from error


def _quantizers(recipe: ExportRecipe) -> list[object]:
    return list(recipe.quantization_recipe.quantizers or ()) if recipe.quantization_recipe else []


def _is_for_a_core(recipe: ExportRecipe) -> bool:
    return any(isinstance(p, OutliningPartitioner) and not p.device.backend for p in partitioners_of(recipe))


def _names(recipes: Sequence[ExportRecipe]) -> str:
    return " and ".join(r.name or "without a name" for r in recipes)


def _check_one_chip(recipes: Sequence[ExportRecipe]) -> None:
    """Refuse two NPUs or two cores: a program is for one chip."""
    owned = [(r, p) for r in recipes for p in partitioners_of(r)]
    npus = [(r.name, p.device.target) for r, p in owned if isinstance(p, OutliningPartitioner) and p.device.backend]
    cores = [(r.name, core.name) for r, p in owned if (core := core_of(p)) is not None]
    for what, found in (("an NPU", npus), ("a core", cores)):
        if len(found) > 1:
            (first, one), (second, other) = found[:2]
            raise OptionError(
                f"The recipes {first} and {second} disagree: they set {what} to {one} and {other}, and a "
                "program is for one chip.",
                hint="leave out one of them",
            )


def _check_quantization(recipes: Sequence[ExportRecipe]) -> None:
    quantized = [r for r in recipes if r.quantization_recipe is not None]
    for first, second in itertools.pairwise(quantized):
        one, other = (bool(r.quantization_recipe.is_qat) for r in (first, second))
        has_data, has_more = (r.quantization_recipe.calibration_inputs_fn is not None for r in (first, second))
        if one != other:
            qat, ptq = (first, second) if one else (second, first)
            raise OptionError(
                f"The recipes {qat.name} and {ptq.name} disagree: the former trains the quantized model, the latter "
                "calibrates it.",
                hint="two QAT recipes or two others",
            )
        if not one and has_more and not has_data:
            raise OptionError(
                f"The recipes {first.name} and {second.name} disagree: the former quantizes, and only the latter has "
                "calibration data.",
                hint="the calibration data for both",
            )
        types = {_activations(r) for r in (first, second)} - {""}
        if len(types) > 1:
            raise OptionError(
                f"The recipes {first.name} and {second.name} disagree: one quantizes activations to "
                f"{' and the other to '.join(sorted(types))}.",
                hint="the same for both",
            )


def _activations(recipe: ExportRecipe) -> str:
    for quantizer in _quantizers(recipe):
        if isinstance(quantizer, StaticQuantizer) and quantizer.settings.default is not None:
            return quantizer.settings.default.activations
    return ""
