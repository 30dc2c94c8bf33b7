"""Recipe types of the NPU backends and of the core, their providers, and recipes for chips."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from executorch.export import BackendRecipeProvider, ExportRecipe, LoweringRecipe, RecipeType

from micronpu.base.arguments import check_switch
from micronpu.base.callers import warn
from micronpu.base.errors import OptionError
from micronpu.base.quiet import quiet
from micronpu.partition.device import Device
from micronpu.partition.lower import backend_config
from micronpu.quantize.config import Activations, IOType, check_io
from micronpu.recipes.files import WriteFiles, check_files_dir
from micronpu.recipes.lowering import OutliningPartitioner, aware_training, plan_scratch, post_training
from micronpu.targets.backend import Backend
from micronpu.targets.options import Options
from micronpu.targets.registry import BACKENDS, find_target, options_for
from micronpu.upstream.executorch import edge_config


@dataclass(frozen=True, kw_only=True)
class RecipeOptions:
    """Options of all recipes.

    Attributes:
        calibration: typical inputs for post-training quantization, as for `micronpu.compile`, or a function that
            returns them; default: the example inputs of the session.
        train: for quantization-aware training: function that trains a module in place.
        per_channel: one weight scale per output channel (True) or one per tensor (False).
        io: "int8", "uint8" or "int16" for integer inputs and outputs; None for floats.
        files_dir: an existing folder for report and kernel selections, written when a program is lowered; "" for none.

    Raises:
        OptionError: a value of the wrong type.
        FileError: the folder does not exist.
    """

    calibration: Any = None
    train: Any = None
    per_channel: bool = True
    io: IOType | None = None
    files_dir: str | Path = ""

    def __post_init__(self) -> None:
        check_switch("per_channel", self.per_channel)
        if self.io is not None:
            check_io(self.io)
        if self.train is not None and not callable(self.train):
            raise OptionError(
                f"`train` is of type {type(self.train).__name__}, not a function that trains the module it is given.",
                hint="def train(module): ...",
            )
        check_files_dir(self.files_dir)

    def check(self, recipe: str, is_qat: bool) -> None:
        """Refuse options that do not match the kind of recipe: a training function is missing or unused."""
        if is_qat and self.train is None:
            raise OptionError(
                f"The recipe {recipe} is for quantization-aware training and has no training function.",
                hint="train=function, which trains the module that it is given",
            )
        if not is_qat and self.train is not None:
            raise OptionError(
                f"The recipe {recipe} is for post-training quantization and has a training function.",
                hint="the recipe for QAT, or leave out `train`",
            )
        if is_qat and self.calibration is not None:
            raise OptionError(
                f"The recipe {recipe} has a training function and calibration data, and each chooses the ranges of the "
                "quantized tensors.",
                hint="leave out `calibration`",
            )


def split_options(given: Mapping[str, object], *kinds: type) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Split options by the dataclass that has a field of their name; the second result has the unknown ones."""
    known = [{f.name for f in fields(kind)} for kind in kinds]
    rest = {k: v for k, v in given.items() if not any(k in names for names in known)}
    return [{k: v for k, v in given.items() if k in names} for names in known], rest


def unknown_options(recipe: str, unknown: Sequence[str], *kinds: type) -> OptionError:
    """Return the error for unknown options."""
    known = sorted({f.name for kind in kinds for f in fields(kind)})
    old = {kind.silicon_key for kind in kinds if issubclass(kind, Options)} | set(_CHIP_WORDS)
    close = [c for name in unknown for c in (["silicon"] if name in old else difflib.get_close_matches(name, known, 1))]
    names = ", ".join(f"`{name}`" for name in unknown)
    return OptionError(
        f"The recipe {recipe} has no option {names}.",
        hint=f"{', '.join(close)}" if close else f"one of {', '.join(known)}",
    )


_CHIP_NAMES = ("cpu", "target")
"""Names of `silicon` in ExecuTorch's own recipes."""

_INSTRUCTIONS = "isa"
"""Name of `instructions` in ExecuTorch's own recipes."""

_CHIP_WORDS = ("config", "config_ini", "isa", "macs", "system_config", "target_config")
"""Options of ExecuTorch's own recipes that choose the hardware: ignored, the program would be for another chip."""


def own_chip(recipe: str, own: Mapping[str, object], unknown: dict[str, Any], kind: type[Options]) -> dict[str, Any]:
    """Return a backend's options with the chip under this package's name; the unknown options that choose it are taken
    out."""
    names = [name for name in ("silicon", *_CHIP_NAMES) if name in own or name in unknown]
    if len(names) > 1:
        raise OptionError(
            f"The recipe {recipe} was given the chip as {' and as '.join(names)}.", hint="`silicon` alone"
        )
    given = {"silicon": unknown.pop(names[0])} if names and names[0] in unknown else {}
    if _INSTRUCTIONS in unknown and "instructions" in {f.name for f in fields(kind)} and "instructions" not in own:
        given["instructions"] = unknown.pop(_INSTRUCTIONS)
    words = [name for name in _CHIP_WORDS if name in unknown]
    if kind.silicon_key in unknown or words:
        raise unknown_options(recipe, words or [kind.silicon_key], RecipeOptions, kind)
    return {**own, **given}


def device_recipe(name: str, shown: str, device: Device, given: Mapping[str, Any], quantization: str) -> ExportRecipe:
    """Return a recipe for a device.

    Args:
        shown: name in messages.
        given: fields of `RecipeOptions`.
        quantization: begins with "int16" for activations of 16 bits, and ends with "_qat" for training.
    """
    options, is_qat = RecipeOptions(**given), quantization.endswith("_qat")
    options.check(shown, is_qat)
    activations: Activations = "int16" if quantization.startswith("int16") else "int8"
    quantizer = device.quantizer(per_channel=options.per_channel, is_qat=is_qat, activations=activations, io=options.io)
    how = aware_training(quantizer, options.train) if is_qat else post_training(quantizer, options.calibration)
    partitioner = OutliningPartitioner(device, io=options.io)
    callbacks: list[object] = [] if device.core is None else [plan_scratch]
    folder = check_files_dir(options.files_dir)
    if folder is not None:
        callbacks.append(WriteFiles(partitioner, folder))
    with quiet():  # ExecuTorch warns that recipes are experimental
        return ExportRecipe(
            name=name,
            quantization_recipe=how,
            lowering_recipe=LoweringRecipe(
                partitioners=[partitioner],
                edge_manager_transform_passes=callbacks or None,
                # The core part may mix dtypes, which ExecuTorch's check of the edge dialect refuses.
                edge_compile_config=edge_config(),
            ),
            executorch_backend_config=backend_config(),
        )


class NpuRecipeProvider(BackendRecipeProvider):
    """Recipes of a backend; options are the fields of `RecipeOptions` and of the backend's options."""

    backend: Backend
    types: type[RecipeType]

    @property
    def backend_name(self) -> str:
        name: str = self.types.get_backend_name()
        return name

    def get_supported_recipes(self) -> Sequence[RecipeType]:
        return tuple(self.types.__members__.values())

    def create_recipe(self, recipe_type: RecipeType, **kwargs: object) -> ExportRecipe | None:
        """Return a recipe, or None for a type of another backend.

        Args:
            kwargs: fields of `RecipeOptions` and of the backend's options; `target` and `cpu` are other names of
                `silicon`.  Combined recipes are given the same options, so an unknown one only causes a warning, unless
                it chooses the hardware.

        Raises:
            OptionError: an option chooses the hardware and is not one of these.
        """
        if not isinstance(recipe_type, self.types):
            return None
        kind = self.backend.options
        (common, own), unknown = split_options(kwargs, RecipeOptions, kind)
        name = f"{self.types.__name__}.{recipe_type.name}"
        named = getattr(recipe_type, "silicon", lambda macs: "")
        if named(None):  # as a second name of the chip if the caller gives one, which is refused
            unknown["cpu" if "target" in unknown else "target"] = named(unknown.pop("macs", None))
        own = own_chip(name, own, unknown, kind)
        if unknown:
            warn(str(unknown_options(name, list(unknown), RecipeOptions, kind)))
        device = self.backend.device(kind(**({"silicon": self.backend.usual} | own)))
        return device_recipe(name, name, device, common, recipe_type.name.lower())


def provider_of(backend: Backend) -> type[NpuRecipeProvider]:
    types = backend.recipes()
    members = {"backend": backend, "types": types, "__doc__": NpuRecipeProvider.__doc__}
    return type(types.__name__.replace("Type", "Provider"), (NpuRecipeProvider,), members)


BY_BACKEND = {name: provider_of(backend) for name, backend in BACKENDS.items()}
"""Provider class of each backend."""

PROVIDERS: tuple[NpuRecipeProvider, ...] = tuple(provider() for provider in BY_BACKEND.values())


Quantization = Literal["int8", "int8_qat", "int16", "int16_qat"]
"""Activations of 8 or 16 bits; quantized after or during training (QAT). Weights are int8."""


def get_imxrt700_recipe(quantization: Quantization = "int8", **options: object) -> ExportRecipe:
    """NXP i.MX RT700: Neutron, and CMSIS-NN on the Cortex-M33; see `get_chip_recipe`."""
    return get_chip_recipe("imxrt700", quantization, **options)


def get_corstone300_recipe(quantization: Quantization = "int8", **options: object) -> ExportRecipe:
    """Arm Corstone-300: Ethos-U55, and CMSIS-NN on the Cortex-M55; see `get_chip_recipe`."""
    return get_chip_recipe("corstone300", quantization, **options)


def get_corstone320_recipe(quantization: Quantization = "int8", **options: object) -> ExportRecipe:
    """Arm Corstone-320: Ethos-U85, and CMSIS-NN on the Cortex-M85; see `get_chip_recipe`."""
    return get_chip_recipe("corstone320", quantization, **options)


def get_imx93_recipe(quantization: Quantization = "int8", **options: object) -> ExportRecipe:
    """NXP i.MX 93: Ethos-U65, and ExecuTorch's portable kernels on the Cortex-A55; see `get_chip_recipe`."""
    return get_chip_recipe("imx93", quantization, **options)


def get_chip_recipe(target: str, quantization: Quantization = "int8", **options: object) -> ExportRecipe:
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
    shown = f'{chosen.name} with "{quantization}"'
    return device_recipe(f"{chosen.name}_{quantization}", shown, device, common, quantization)
