"""`micronpu blame`: accuracy loss by layer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from micronpu.cli import console
from micronpu.cli.completion import Target
from micronpu.cli.evaluate import write_json
from micronpu.cli.options import chosen_options
from micronpu.cli.quantization import How, quantization_of

Sort = Annotated[str, typer.Option(metavar="BY", help="Sort by: output, own or total error.")]
FloatModel = Annotated[str, console.argument("MODEL", "The float model: path/to/file.py:function or file.pt2.")]
MeasuredOn = Annotated[
    str | None,
    console.option(
        "DATA",
        "Inputs to measure on, a dozen or more: FILE.npy, FILE.npz (FILE.npz:name,... picks arrays), or "
        "file.py:function, which returns a list of inputs.",
        default="the function `calibration` of the model's file",
    ),
]
Ranges = Annotated[str | None, console.option("DATA", "Calibration inputs.", default="those of --data")]


@console.guarded
def blame(
    context: typer.Context,
    model: FloatModel,
    data: MeasuredOn = None,
    calibration: Ranges = None,
    target: Target = "",
    quantization: How = None,
    library: console.Library = None,
    sort: Sort = "output",
    report_json: Annotated[Path | None, console.option("PATH", "Write all layers as JSON; - for stdout.")] = None,
    json: console.JsonInstead = False,
    debug: console.Debug = False,
) -> None:
    """Show which layers lose accuracy in quantization, and what to try."""
    from micronpu.cli.files import load_calibration, load_model, register
    from micronpu.targets.registry import find_target

    options = chosen_options(context, find_target(target))
    report_json = console.checked_json_path(json, report_json)
    with console.progress() as callback:
        callback("load", 0.0)
        register(library)
        loaded = load_model(model)
        rows = list(load_calibration(data, loaded))
        ranges = None if calibration is None else list(load_calibration(calibration, loaded))
        import micronpu
        from micronpu.report.diagnosis import check_sort

        callback("load", 1.0)
        found = micronpu.blame(
            loaded.module,
            rows,
            target,
            calibration=ranges,
            example_inputs=loaded.examples,
            quantization=quantization_of(quantization),
            options=options,
            sort=check_sort(sort),
            callback=callback,
        )
    console.words(report_json).print(found)
    write_json(report_json, found.to_json())
