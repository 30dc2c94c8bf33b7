"""`micronpu blame`: which layer costs the accuracy."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from micronpu.base.errors import OptionError
from micronpu.base.files import check_folder, write_file
from micronpu.cli import console
from micronpu.cli.completion import Target
from micronpu.cli.evaluate import write_json
from micronpu.cli.options import chosen_options
from micronpu.cli.quantization import UNCHANGED, Quantization

if TYPE_CHECKING:
    from rich.console import Console

    from micronpu.report.fixes import Fixes

_FOR_BLAME = 32
"""Rows that are blamed where cures are tried as well."""

Sort = Annotated[str, typer.Option(metavar="BY", help="Sort by: output, own or total error.")]


@console.guarded
@console.takes(how=Quantization)
def blame(
    context: typer.Context,
    model: Annotated[
        str,
        console.argument("MODEL", "The float model: path/to/file.py:function or file.pt2."),
    ],
    data: Annotated[
        str | None,
        console.option(
            "DATA",
            "Inputs to measure on, a dozen or more: FILE.npy, FILE.npz (FILE.npz:name,... picks arrays), or "
            "file.py:function, which returns a list of inputs.",
            default="the function `calibration` of the model's file",
        ),
    ] = None,
    calibration: Annotated[
        str | None,
        console.option("DATA", "Calibration inputs.", default="those of --data"),
    ] = None,
    target: Target = "",
    how: Quantization = UNCHANGED,
    library: console.Library = None,
    sort: Sort = "output",
    fix: Annotated[
        bool,
        typer.Option(
            "--fix",
            help="Try fixes, keep those that help on held-out samples, write a settings file for each good trade-off.",
        ),
    ] = False,
    budget: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="Time limit of --fix (wall-clock seconds)."),
    ] = 60.0,
    fix_output: Annotated[
        Path | None,
        console.option("DIR", "Folder for the files of --fix.", default="the present folder"),
    ] = None,
    report_json: Annotated[
        Path | None,
        console.option("PATH", "Write all layers, or with --fix all choices, as JSON; - for stdout."),
    ] = None,
    json: console.JsonInstead = False,
    debug: console.Debug = False,
) -> None:
    """Show which layers lose accuracy in quantization, and what to try."""
    from micronpu.cli.files import load_calibration, load_model, register
    from micronpu.targets.registry import find_target

    options = chosen_options(context, find_target(target))
    report_json = console.checked_json_path(json, report_json)
    if fix_output is not None:
        if not fix:
            raise OptionError("--fix-output is given without --fix.", hint="--fix")
        check_folder(fix_output)
    quantization = how.value()
    if not 0 < budget < math.inf:
        raise OptionError(f"--budget is {budget}; it is a number of seconds.", hint="--budget 60")
    if fix and how.activations != "int8":
        raise OptionError("--fix tries int16 by itself, where the NPU has it.", hint="leave out --activations")
    with console.progress() as listener:
        listener("load", 0.0)
        register(library)
        loaded = load_model(model)
        rows = list(load_calibration(data, loaded))
        ranges = None if calibration is None else list(load_calibration(calibration, loaded))
        import micronpu
        from micronpu.report.blame import check_sort

        listener("load", 1.0)
        found = micronpu.blame(
            loaded.module,
            rows[:_FOR_BLAME] if fix else rows,
            target,
            calibration=ranges,
            example_inputs=loaded.examples,
            quantization=quantization,
            options=options,
            sort=check_sort(sort),
            listener=listener,
        )
        fixes = None
        if fix:
            fixes = micronpu.fix(
                loaded.module,
                rows,
                target,
                calibration=ranges,
                example_inputs=loaded.examples,
                quantization=quantization,
                options=options,
                budget=budget,
                listener=listener,
            )
    out = console.words(report_json)
    out.print(found)
    if fixes is not None:
        out.print("", fixes)
        _write_choices(fixes, fix_output or Path(), f"micronpu compile {model} -t {target}", loaded.name, out)
    write_json(report_json, found.to_json() if fixes is None else fixes.to_json())


def _write_choices(fixes: Fixes, folder: Path, command: str, name: str, out: Console) -> None:
    """A quantization file for each choice worth taking, and the line that takes it."""
    from micronpu.quantize.settings_file import to_toml

    for number, choice in enumerate(fixes.choices):
        if not choice.best or not choice.quantization:
            continue
        path = write_file(folder / f"{name}.quantization-{number}.toml", to_toml(choice.quantization).encode())
        out.print(Text.assemble((f"{number}: ", "bold"), f"{command} --quantization {path}"), soft_wrap=True)
