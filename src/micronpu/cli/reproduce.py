"""`micronpu reproduce`: rebuild a program from its manifest, and find the cause of any difference."""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from micronpu.base.files import check_writable
from micronpu.cli import console
from micronpu.cli.completion import complete_target

if TYPE_CHECKING:
    from micronpu.compiler.program import CompiledProgram
    from micronpu.report.manifest import Cause, Manifest, Sources


@console.guarded
def reproduce(
    manifest: Annotated[Path, console.argument("NAME.manifest.json", "The manifest of `micronpu compile --manifest`.")],
    model: Annotated[
        str | None,
        console.argument(
            "[MODEL]",
            "The model, as for `micronpu compile`. Default: the one in the manifest, unless it is a Python file, "
            "which is only run if you name it here.",
        ),
    ] = None,
    calibration: Annotated[
        str | None, console.option("DATA", "Calibration data, if moved.", default="what the manifest names")
    ] = None,
    library: Annotated[
        list[str] | None,
        console.option("FILE.py", "A Python file that registers custom operators. May be given several times."),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option("--target", "-t", help="Chip file, if moved.", autocompletion=complete_target),
    ] = None,
    output: Annotated[Path | None, console.option("OUT.pte", "Write the program.", "--output", "-o")] = None,
    json: console.Json = False,
    no_cache: console.NoCache = False,
    debug: console.Debug = False,
) -> None:
    """Rebuild a program with the model, data and options of its manifest.

    Exit code 0 if identical, else 1 and the cause: model, data, options, tools or machine.
    """
    from micronpu.cli.sources import found_sources
    from micronpu.report.manifest import Manifest, causes

    if output is not None:
        check_writable(output)
    wanted = Manifest.load(manifest)
    sources = found_sources(wanted.sources, manifest, model, calibration, library)
    program = _compiled(wanted, sources, target)
    same = hashlib.sha256(program.buffer).hexdigest() == wanted.hashes.get(wanted.program)
    found = causes(wanted.basis, program.basis)
    if json:
        data = {"same": same, "bytes": len(program.buffer), "causes": [_as_json(cause) for cause in found]}
        console.print_json(data)
    else:
        for line in _lines(wanted, program, found, same=same):
            console.output().print(Text(line), soft_wrap=True)
    if output is not None:
        program.save(output)
        console.words(None).print(Text(f"Wrote {output}."), soft_wrap=True)
    if not same:
        raise typer.Exit(console.DIFFERENT)


def _compiled(wanted: Manifest, sources: Sources, target: str | None) -> CompiledProgram:
    from micronpu.cli.files import load_model, register
    from micronpu.cli.pictures import NO_PICTURES, Pictures
    from micronpu.cli.sources import load_data
    from micronpu.compiler.basis import CompileRequest
    from micronpu.report.warnings import AccuracyWarning

    pictures = Pictures(Path(sources.images), sources.normalize or None) if sources.images else NO_PICTURES
    pictures.check()
    asked = CompileRequest.read(wanted.basis.options, target or sources.chip or None)
    with console.progress() as callback, warnings.catch_warnings():
        callback("load", 0.0)
        register(sources.libraries)
        loaded = load_model(sources.model)
        data = load_data(sources.calibration or None, pictures, loaded)
        import micronpu

        callback("load", 1.0)
        warnings.simplefilter("ignore", AccuracyWarning)  # shown when the program was first compiled
        return micronpu.compile(
            loaded.module,
            loaded.examples,
            asked.target,
            calibration=data,
            quantization=asked.quantization,
            options=asked.options,
            verify=asked.verification,
            transforms=asked.transforms,
            callback=callback,
        )


def _lines(wanted: Manifest, program: CompiledProgram, found: tuple[Cause, ...], *, same: bool) -> list[str]:
    if same:
        lines = [f"The same {len(program.buffer):,} bytes as {wanted.program}."]
        return [*lines, *(f"Without a difference to them: {cause}" for cause in found)]
    lines = [f"Other bytes than {wanted.program}: {len(program.buffer):,} here, {wanted.bytes:,} there."]
    if not found:
        nothing = (
            "Model, data, options, tools and machine are the same: this is a defect of micronpu, please report it."
        )
        return [*lines, nothing]
    return [*lines, *map(str, found)]


def _as_json(cause: Cause) -> dict[str, object]:
    from micronpu.report.codec import encode

    data: dict[str, object] = encode(cause)
    return data
