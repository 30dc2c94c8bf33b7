"""`micronpu advise`: hotspots, and changes of the model that would save time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from micronpu.cli import console
from micronpu.cli.completion import Target
from micronpu.cli.evaluate import write_json
from micronpu.cli.options import chosen_options
from micronpu.cli.quantization import How, quantization_of


@console.guarded
def advise(
    context: typer.Context,
    model: Annotated[
        str,
        console.argument("MODEL", "The float model: path/to/file.py:function or file.pt2."),
    ],
    calibration: Annotated[
        str | None,
        console.option(
            "DATA",
            "Calibration data, see `micronpu compile`; eight inputs are enough.",
            default="`calibration` of the file",
        ),
    ] = None,
    target: Target = "",
    quantization: How = None,
    library: console.Library = None,
    report_json: Annotated[
        Path | None,
        console.option("PATH", "Write hotspots and changes as JSON; - for standard output."),
    ] = None,
    json: console.JsonInstead = False,
    debug: console.Debug = False,
) -> None:
    """Show where the time goes and what model changes would save (compiled, not retrained)."""
    from micronpu.cli.files import load_calibration, load_model, register
    from micronpu.targets.registry import find_target

    options = chosen_options(context, find_target(target))
    report_json = console.checked_json_path(json, report_json)
    with console.progress() as callback:
        callback("load", 0.0)
        register(library)
        loaded = load_model(model)
        rows = load_calibration(calibration, loaded)
        import micronpu

        callback("load", 1.0)
        found = micronpu.advise(
            loaded.module,
            loaded.examples,
            target,
            calibration=rows,
            quantization=quantization_of(quantization),
            options=options,
            callback=callback,
        )
    console.words(report_json).print(found)
    write_json(report_json, found.to_json())
