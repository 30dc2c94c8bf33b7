"""`micronpu evaluate`, `blame`, `fix` and `advise`: accuracy and time of a model, and what would improve them."""

from __future__ import annotations

from collections.abc import Callable
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.text import Text

import micronpu
from micronpu.base.errors import OptionError
from micronpu.base.files import check_new_folder, make_folder, write_file
from micronpu.cli import console, hints
from micronpu.cli.compiled import read_program
from micronpu.cli.options import Target, chosen_options
from micronpu.cli.settings import JUDGE, NO_SCORING, OWN, How, ModelName, Scoring, inputs, quantization_of
from micronpu.cli.sources import NO_PICTURES, Pictures, load_data, load_labels, load_metric
from micronpu.targets.registry import find_target

if TYPE_CHECKING:
    from rich.console import Console

    from micronpu.report.diagnosis import Fixes

Result = TypeVar("Result")


@console.guarded
@console.takes(pictures=Pictures, scoring=Scoring)
def evaluate(
    model: ModelName,
    program: Annotated[Path, console.argument("PROGRAM.pte", "The program that `micronpu compile` made from it.")],
    data: Annotated[str | None, inputs(JUDGE, "--data", "--calibration")] = None,
    pictures: Pictures = NO_PICTURES,
    library: console.Library = None,
    scoring: Scoring = NO_SCORING,
    output: Annotated[int, typer.Option(metavar="NUMBER", help="Output of the model to evaluate.")] = 0,
    fast: Annotated[
        bool, typer.Option("--fast", help="Fast kernels, which may differ by one LSB from the bit-exact ones.")
    ] = False,
    report_json: console.ReportJson = None,
    json: console.JsonInstead = False,
    debug: console.Debug = False,
) -> None:
    """Compare the accuracy of a .pte with the float model, with significance."""
    from micronpu.cli.files import load_with

    report_json = console.checked_json_path(json, report_json)
    pictures.check(data, "--data")
    if data is None and pictures.images is None:
        raise OptionError("There are no inputs to judge the program on.", hint="--data DATA, or --images DIR")
    scoring.check()
    read_program(program)  # refuses a model and a folder
    with console.progress() as callback:
        loaded = load_with(library, model, callback)
        rows = load_data(data, pictures, loaded)
        truth, judge = load_labels(scoring.labels), load_metric(scoring.metric)
        callback("load", 1.0)
        found = micronpu.evaluate(
            loaded.module, rows, program, truth, metric=judge, output=output, fast=fast, callback=callback
        )
    console.words(report_json).print(found)
    console.write_json(report_json, found.to_json())


Sort = Annotated[str, typer.Option(metavar="BY", help="Sort by: output, own or total error.")]
MeasuredOn = Annotated[str | None, inputs(f"{JUDGE}, a dozen or more", default=OWN)]
Ranges = Annotated[str | None, console.option("DATA", "Typical inputs, in the same forms.", default="those of --data")]


def _on_data(
    judge: Callable[..., Result],
    context: typer.Context,
    model: str,
    data: tuple[str | None, str | None],
    pictures: Pictures,
    scoring: Scoring,
    target: str,
    quantization: Any,
    library: console.Library,
    **options: object,
) -> tuple[Result, str]:
    """Return what `micronpu.blame` or `micronpu.fix` finds on a float model, and the model's name.

    Args:
        data: inputs to measure on, and calibration inputs; None for those that measure.
        pictures: the inputs to measure on, in place of the first.
        scoring: labels of the inputs to measure on.
        options: further arguments of ``judge``.
    """
    from micronpu.cli.files import load_calibration, load_with

    pictures.check(data[0], "--data")
    scoring.check()
    options |= {"options": chosen_options(context, find_target(target)), "quantization": quantization_of(quantization)}
    with console.progress() as callback:
        loaded = load_with(library, model, callback)
        rows = scoring.of(list(load_data(data[0], pictures, loaded)))
        ranges = None if data[1] is None else list(load_calibration(data[1], loaded))
        callback("load", 1.0)
        options |= {"example_inputs": loaded.examples, "callback": callback}
        return judge(loaded.module, rows, target, calibration=ranges, **options), loaded.name


@console.guarded
@console.takes(pictures=Pictures, scoring=Scoring)
def blame(
    context: typer.Context,
    model: ModelName,
    data: MeasuredOn = None,
    pictures: Pictures = NO_PICTURES,
    scoring: Scoring = NO_SCORING,
    calibration: Ranges = None,
    target: Target = "",
    quantization: How = None,
    library: console.Library = None,
    sort: Sort = "output",
    report_json: console.ReportJson = None,
    json: console.JsonInstead = False,
    debug: console.Debug = False,
) -> None:
    """Show which layers lose accuracy in quantization, and what to try."""
    from micronpu.report.diagnosis import check_sort

    report_json = console.checked_json_path(json, report_json)
    rows, how, sort = ((data, calibration), pictures, scoring), (target, quantization, library), check_sort(sort)
    found, _ = _on_data(micronpu.blame, context, model, *rows, *how, sort=sort)
    console.words(report_json).print(found)
    console.write_json(report_json, found.to_json())


@console.guarded
@console.takes(pictures=Pictures, scoring=Scoring)
def fix(
    context: typer.Context,
    model: ModelName,
    data: MeasuredOn = None,
    pictures: Pictures = NO_PICTURES,
    scoring: Scoring = NO_SCORING,
    calibration: Ranges = None,
    target: Target = "",
    quantization: How = None,
    library: console.Library = None,
    budget: Annotated[
        float, console.option("SECONDS", "Time limit (wall-clock seconds).", "--time-limit", "--budget", default="60")
    ] = 60.0,
    output: Annotated[
        Path | None,
        console.option(
            "DIR", "Folder for the settings files; created if missing.", "--output", "-o", default="the current folder"
        ),
    ] = None,
    report_json: console.ReportJson = None,
    json: console.JsonInstead = False,
    debug: console.Debug = False,
) -> None:
    """Try fixes for the accuracy, keep those that help on held-out samples, write a settings file for each trade-off.

    Each file is for `micronpu compile --quantization FILE.toml`.
    """
    report_json = console.checked_json_path(json, report_json)
    if output is not None:
        check_new_folder(output)
    rows, how = ((data, calibration), pictures, scoring), (target, quantization, library)
    found, name = _on_data(micronpu.fix, context, model, *rows, *how, budget=budget)
    out = console.words(report_json)
    out.print(found)
    _write_choices(found, make_folder(output or Path()), context, name, out)
    console.write_json(report_json, found.to_json())


def _write_choices(fixes: Fixes, folder: Path, context: typer.Context, name: str, out: Console) -> None:
    """Write a settings file for each choice worth taking in place of an earlier run's, and print its command."""
    from micronpu.quantize.settings_file import to_toml

    run = f"# micronpu fix {context.params['model']} -t {fixes.target}: "
    own = {"data": None, "calibration": context.params["data"]}  # these calibrate too, unless others do
    own = own if context.params["calibration"] is None else {"images": None, "normalize": None}
    files = (p for p in folder.glob(f"{escape(name)}.quantization-*.toml") if p.stem.rpartition("-")[2].isdigit())
    earlier = {path: path.read_text(errors="replace") for path in files}
    written = set[Path]()
    for number, choice in enumerate(fixes.choices):
        if not choice.best or not choice.quantization:
            continue
        text = f"{run}{choice.name}\n{to_toml(choice.quantization)}"
        written.add(path := write_file(folder / f"{name}.quantization-{number}.toml", text.encode()))
        for line in hints.command_line("compile", context, quantization=[path], **own):
            out.print(Text.assemble((f"{number}: ", "bold"), line), soft_wrap=True)
    stale = {path for path, text in earlier.items() if path not in written and text.startswith(run)}
    for path in stale:
        path.unlink()
    for what, paths in (("Replaced", written & earlier.keys()), ("Removed the earlier", stale)):
        if paths:
            out.print(Text(f"{what} {', '.join(sorted(map(str, paths)))}."))


@console.guarded
@console.takes(pictures=Pictures)
def advise(
    context: typer.Context,
    model: ModelName,
    calibration: Annotated[
        str | None,
        inputs("Typical inputs of a float model, of which eight are enough", "--calibration", "--data", default=OWN),
    ] = None,
    pictures: Pictures = NO_PICTURES,
    target: Target = "",
    quantization: How = None,
    library: console.Library = None,
    report_json: console.ReportJson = None,
    json: console.JsonInstead = False,
    debug: console.Debug = False,
) -> None:
    """Show where the time goes and what model changes would save (compiled, not retrained)."""
    from micronpu.cli.files import load_with

    report_json = console.checked_json_path(json, report_json)
    pictures.check(calibration)
    options = chosen_options(context, find_target(target))
    with console.progress() as callback:
        loaded = load_with(library, model, callback)
        rows = load_data(calibration, pictures, loaded)
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
    console.write_json(report_json, found.to_json())
