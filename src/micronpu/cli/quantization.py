"""Options of the command that say how a model is quantized: one value, for every command that quantizes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from micronpu.cli import console

if TYPE_CHECKING:
    import micronpu

_PANEL = "Quantization"

_PerTensor = Annotated[
    bool, typer.Option("--per-tensor", help="One weight scale per tensor, not one per output channel.")
]
_Activations = Annotated[
    str,
    typer.Option(
        metavar="TYPE",
        help="Activation type: int8, int16 (if supported), or auto or accurate (compile only): int8 if near float, "
        "otherwise the most accurate program in 1.1 or 2 times its time. Weights are always int8.",
    ),
]

_File = Annotated[
    Path | None,
    console.option(
        "FILE.toml",
        "Observers, corrections, and settings for parts of the model; `micronpu blame --fix` writes such files.",
        "--quantization",
        panel=_PANEL,
    ),
]
_Observer = Annotated[
    str | None,
    console.option(
        "NAME",
        "Observer for activation ranges: histogram, mse, percentile, minmax, moving_average.",
        "--activation-observer",
        default="histogram",
        panel=_PANEL,
    ),
]
_Percentile = Annotated[
    float | None,
    console.option("PERCENT", "Percentile of the observer `percentile`.", default="99.99", panel=_PANEL),
]
_InputObserver = Annotated[
    str | None,
    console.option(
        "NAME", "Observer for the ranges of the program's inputs.", "--input-observer", default="minmax", panel=_PANEL
    ),
]
_WeightObserver = Annotated[
    str | None,
    console.option(
        "NAME", "Observer for weight ranges: minmax, mse.", "--weight-observer", default="minmax", panel=_PANEL
    ),
]
_Equalize = Annotated[
    bool,
    typer.Option(
        "--equalize",
        help="Balance the ranges of successive layers, channel by channel (cross-layer equalization).",
        rich_help_panel=_PANEL,
    ),
]
_BiasCorrection = Annotated[
    bool,
    typer.Option(
        "--bias-correction",
        help="Correct the biases for the mean error of the rounded weights.",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]
_AdaptiveRounding = Annotated[
    bool,
    typer.Option(
        "--adaptive-rounding",
        help="Choose weight rounding to minimise the layer's output error (AdaRound).",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]
_FitRanges = Annotated[
    bool,
    typer.Option(
        "--fit-ranges",
        help="Choose activation ranges to minimise the error of the model's outputs.",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]
_Projections = Annotated[
    bool,
    typer.Option(
        "--projections",
        help="Compute sqrt(a*a + b*b) without squares, at most 4 % off; int8 does not hold the range of squares.",
        rich_help_panel=_PANEL,
    ),
]
_MaxSlowdown = Annotated[
    float | None,
    console.option(
        "FACTOR",
        "For auto and accurate: the time that a program may take, as a multiple of that of int8.",
        "--max-slowdown",
        default="1.1 for auto, 2 for accurate",
        panel=_PANEL,
    ),
]


@dataclass(frozen=True)
class Quantization:
    """What the options of a command say about quantization, an option for each field."""

    per_tensor: _PerTensor = False
    activations: _Activations = "int8"
    max_slowdown: _MaxSlowdown = None
    quantization: _File = None
    activation_observer: _Observer = None
    percentile: _Percentile = None
    input_observer: _InputObserver = None
    weight_observer: _WeightObserver = None
    equalize: _Equalize = False
    bias_correction: _BiasCorrection = False
    adaptive_rounding: _AdaptiveRounding = False
    fit_ranges: _FitRanges = False
    projections: _Projections = False

    def value(self, io: str | None = None) -> micronpu.Quantization:
        """What `micronpu.compile` takes as ``quantization``.

        Raises:
            FileError, OptionError: the file cannot be read, or there is no such type.
        """
        import micronpu
        from micronpu.quantize.config import check_borders

        return micronpu.Quantization(
            per_channel=not self.per_tensor,
            activations=self._activations(),
            max_slowdown=self.max_slowdown,
            io=check_borders(io, "--io") if io is not None else None,
            settings=self._settings(),
        )

    def _activations(self) -> Any:
        from micronpu.quantize.config import check_activations

        chosen = self.activations in ("auto", "accurate")
        return self.activations if chosen else check_activations(self.activations, "--activations")

    def _settings(self) -> dict[str, Any] | Path | None:
        """The file and the options of its settings; an option goes before the same setting of the file.

        Raises:
            FileError, OptionError: the file cannot be read.
        """
        named = ("activation_observer", "percentile", "input_observer", "weight_observer")
        default = {name: getattr(self, name) for name in named if getattr(self, name) is not None}
        switches = ("equalize", "bias_correction", "adaptive_rounding", "fit_ranges", "projections")
        switched = {name: True for name in switches if getattr(self, name)}
        if not default and not switched:
            return self.quantization
        given: dict[str, Any] = {}
        if self.quantization is not None:
            from micronpu.quantize.settings_file import read_quantization

            given = read_quantization(self.quantization)
        if default:
            given["default"] = {**given.get("default", {}), **default}
        return {**given, **switched}


UNCHANGED = Quantization()
"""Where no option is given."""
