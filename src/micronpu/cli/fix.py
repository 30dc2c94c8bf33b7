"""`micronpu fix`: fixes for the accuracy, tried on held-out samples."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from micronpu.base.files import check_new_folder, make_folder, write_file
from micronpu.cli import console
from micronpu.cli.blame import FloatModel, MeasuredOn, Ranges
from micronpu.cli.completion import Target
from micronpu.cli.evaluate import write_json
from micronpu.cli.options import chosen_options
from micronpu.cli.quantization import How, quantization_of

if TYPE_CHECKING:
    from rich.console import Console

    from micronpu.report.diagnosis import Fixes


@console.guarded
def fix(
    context: typer.Context,
    model: FloatModel,
    data: MeasuredOn = None,
    calibration: Ranges = None,
    target: Target = "",
    quantization: How = None,
    library: console.Library = None,
    budget: Annotated[float, typer.Option(metavar="SECONDS", help="Time limit (wall-clock seconds).")] = 60.0,
    output: Annotated[
        Path | None,
        console.option(
            "DIR", "Folder for the settings files; created if missing.", "--output", "-o", default="the current folder"
        ),
    ] = None,
    report_json: Annotated[Path | None, console.option("PATH", "Write all choices as JSON; - for stdout.")] = None,
    json: console.JsonInstead = False,
    debug: console.Debug = False,
) -> None:
    """Try fixes for the accuracy, keep those that help on held-out samples, write a settings file for each trade-off.

    Each file is for `micronpu compile --quantization FILE.toml`.
    """
    from micronpu.cli.files import load_calibration, load_model, register
    from micronpu.targets.registry import find_target

    options = chosen_options(context, find_target(target))
    report_json = console.checked_json_path(json, report_json)
    if output is not None:
        check_new_folder(output)
    with console.progress() as callback:
        callback("load", 0.0)
        register(library)
        loaded = load_model(model)
        rows = list(load_calibration(data, loaded))
        ranges = None if calibration is None else list(load_calibration(calibration, loaded))
        import micronpu

        callback("load", 1.0)
        found = micronpu.fix(
            loaded.module,
            rows,
            target,
            calibration=ranges,
            example_inputs=loaded.examples,
            quantization=quantization_of(quantization),
            options=options,
            budget=budget,
            callback=callback,
        )
    out = console.words(report_json)
    out.print(found)
    _write_choices(found, make_folder(output or Path()), f"micronpu compile {model} -t {target}", loaded.name, out)
    write_json(report_json, found.to_json())


def _write_choices(fixes: Fixes, folder: Path, command: str, name: str, out: Console) -> None:
    """Write a settings file for each choice worth taking, and print the command that takes it."""
    from micronpu.quantize.settings_file import to_toml

    for number, choice in enumerate(fixes.choices):
        if not choice.best or not choice.quantization:
            continue
        path = write_file(folder / f"{name}.quantization-{number}.toml", to_toml(choice.quantization).encode())
        out.print(Text.assemble((f"{number}: ", "bold"), f"{command} --quantization {path}"), soft_wrap=True)
