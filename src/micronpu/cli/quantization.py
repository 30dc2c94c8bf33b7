"""Options of the command that say how a model is quantized, as the dictionary that `compile` takes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

_PANEL = "Quantization"

QuantizationFile = Annotated[
    Path | None,
    typer.Option(
        "--quantization",
        metavar="FILE.toml",
        help="Observers, corrections, and parts of the model apart; `micronpu blame --fix` writes such files.",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]
Observer = Annotated[
    str | None,
    typer.Option(
        "--activation-observer",
        metavar="NAME",
        help="Where ranges of activations come from: histogram, mse, percentile, minmax, moving_average.",
        rich_help_panel=_PANEL,
        show_default="histogram",
    ),
]
Percentile = Annotated[
    float | None,
    typer.Option(
        metavar="PERCENT",
        help="For percentile: values inside of the range at either end.",
        rich_help_panel=_PANEL,
        show_default="99.99",
    ),
]
InputObserver = Annotated[
    str | None,
    typer.Option(
        "--input-observer",
        metavar="NAME",
        help="The same for the inputs of the program.",
        rich_help_panel=_PANEL,
        show_default="minmax",
    ),
]
WeightObserver = Annotated[
    str | None,
    typer.Option(
        "--weight-observer",
        metavar="NAME",
        help="Where ranges of weights come from: minmax, mse.",
        rich_help_panel=_PANEL,
        show_default="minmax",
    ),
]
Equalize = Annotated[
    bool,
    typer.Option(
        "--equalize",
        help="Layers in a row share their ranges, channel by channel (cross-layer equalization).",
        rich_help_panel=_PANEL,
    ),
]
BiasCorrection = Annotated[
    bool,
    typer.Option(
        "--bias-correction",
        help="The mean error of rounded weights is taken out of the biases.",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]
AdaptiveRounding = Annotated[
    bool,
    typer.Option(
        "--adaptive-rounding",
        help="Weights are rounded so that results are near, not each to its nearest step (AdaRound's aim).",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]


def chosen_quantization(
    file: Path | None,
    observer: str | None,
    percentile: float | None,
    input_observer: str | None,
    weight_observer: str | None,
    equalize: bool,
    bias_correction: bool,
    adaptive_rounding: bool,
) -> dict[str, Any] | Path | None:
    """What the options say; an option goes before the same setting of the file.

    Raises:
        FileError, OptionError: the file cannot be read.
    """
    default = {
        "activation_observer": observer,
        "percentile": percentile,
        "input_observer": input_observer,
        "weight_observer": weight_observer,
    }
    corrections = {
        "equalize": equalize,
        "bias_correction": bias_correction,
        "adaptive_rounding": adaptive_rounding,
    }
    chosen = {name: value for name, value in default.items() if value is not None}
    switched = {name: True for name, on in corrections.items() if on}
    if not chosen and not switched:
        return file
    given: dict[str, Any] = {}
    if file is not None:
        from micronpu.quantize.settings_file import read_quantization

        given = read_quantization(file)
    if chosen:
        given["default"] = {**given.get("default", {}), **chosen}
    return {**given, **switched}
