"""`micronpu evaluate`: accuracy of the float model and of the program on the same samples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from micronpu.base.errors import ModelError, OptionError
from micronpu.base.files import write_file
from micronpu.cli import console
from micronpu.cli.pictures import NO_PICTURES, Pictures


@console.guarded
@console.takes(pictures=Pictures)
def evaluate(
    model: Annotated[
        str,
        console.argument("MODEL", "The float model: path/to/file.py:function or file.pt2."),
    ],
    program: Annotated[Path, console.argument("PROGRAM.pte", "The program that `micronpu compile` made from it.")],
    data: Annotated[
        str | None,
        console.option(
            "DATA",
            "Inputs: FILE.npy, FILE.npz (one array per input of the model, one row per input; FILE.npz:name,... "
            "picks arrays), or file.py:function, which returns a list of inputs; for a model with states a list of "
            "sequences, each a list of inputs. Or --images.",
        ),
    ] = None,
    pictures: Pictures = NO_PICTURES,
    library: console.Library = None,
    labels: Annotated[
        str | None,
        console.option("FILE", "FILE.npy or FILE.npz:name with an entry for each row, or for each sequence."),
    ] = None,
    metric: Annotated[
        str | None,
        console.option(
            "NAME",
            "top1, auc, f1, mae, or file.py:function, which gets outputs and labels (and inputs) and returns a "
            "number, of which more is better.",
            default="top1 where there are labels",
        ),
    ] = None,
    output: Annotated[int, typer.Option(metavar="NUMBER", help="Output of the model to evaluate.")] = 0,
    fast: Annotated[
        bool, typer.Option("--fast", help="Fast kernels, which may differ by one LSB from the bit-exact ones.")
    ] = False,
    report_json: Annotated[
        Path | None,
        console.option("PATH", "Write the figures as JSON; - for standard output."),
    ] = None,
    json: console.JsonInstead = False,
    debug: console.Debug = False,
) -> None:
    """Compare the accuracy of a .pte with the float model, with significance."""
    from micronpu.cli.files import load_model, register
    from micronpu.cli.sources import load_data

    pictures.check(data, "--data")
    if data is None and pictures.images is None:
        raise OptionError("There are no inputs to judge the program on.", hint="--data DATA, or --images DIR")
    if metric is not None and labels is None:
        raise OptionError("--metric is given, and no labels to compute it with.", hint="--labels y.npy")
    report_json = console.checked_json_path(json, report_json)
    with console.progress() as callback:
        callback("load", 0.0)
        register(library)
        loaded = load_model(model)
        rows = load_data(data, pictures, loaded)
        truth = load_labels(labels) if labels is not None else None
        judge = load_metric(metric) if metric is not None else None
        import micronpu

        callback("load", 1.0)
        found = micronpu.evaluate(
            loaded.module, rows, program, truth, metric=judge, output=output, fast=fast, callback=callback
        )
    console.words(report_json).print(found)
    write_json(report_json, found.to_json())


def write_json(path: Path | None, text: str) -> None:
    """Write JSON to a file, or to standard output if the path is "-"."""
    if path == console.STANDARD_OUTPUT:
        typer.echo(text)
    elif path is not None:
        write_file(path, (text + "\n").encode())
        console.output().print(f"Wrote {path}.", soft_wrap=True, markup=False)


def load_labels(text: str) -> Any:
    """Return the one array that ``text`` names.

    Raises:
        ModelError: the file holds several.
        FileError: it cannot be read.
    """
    from micronpu.cli.files import load_arrays

    arrays = load_arrays(text)
    if len(arrays) != 1:
        raise ModelError(
            f"{text} holds {len(arrays)} arrays ({', '.join(arrays)}), of which one is the labels.",
            hint=f"{text.partition(':')[0]}:{next(iter(arrays), 'name')}",
        )
    return next(iter(arrays.values()))


def load_metric(text: str) -> str | Callable[..., Any]:
    """Return the name of a metric, or the function that ``file.py:function`` names.

    Raises:
        ModelError: there is no such file or function.
    """
    from micronpu.cli.files import UserFile

    path, colon, name = text.rpartition(":")
    if not colon:
        return text
    file = UserFile(Path(path))
    if not file.has(name):
        raise ModelError(f"{file.path} has no function {name!r}.", hint="def metric(outputs, labels): return number")
    function: Callable[..., Any] = getattr(file.module, name)
    return function
