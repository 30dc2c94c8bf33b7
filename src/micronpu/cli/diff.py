"""`micronpu diff` and `micronpu reproduce`: differences between two reports or programs, and their causes."""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import micronpu
from micronpu.base.errors import FileError, ModelError, OptionError
from micronpu.base.files import check_writable
from micronpu.cli import console
from micronpu.cli.compiled import read_program
from micronpu.cli.options import complete_target
from micronpu.cli.sources import NO_PICTURES, Pictures, found_sources, load_data
from micronpu.program.plan import read_plan
from micronpu.program.pte import PteSummary, read_pte
from micronpu.report.codec import encode
from micronpu.report.manifest import SUFFIX, Basis, Cause, Manifest, Sources, causes

if TYPE_CHECKING:
    from micronpu.compiler.program import CompiledProgram
    from micronpu.report.difference import Difference, Figure


@console.guarded
def diff(
    before: Annotated[
        Path, console.argument("BEFORE", "A report (.json), a program (.pte), or with --why a manifest.")
    ],
    after: Annotated[Path, console.argument("AFTER", "Another of the same kind.")],
    why: Annotated[
        bool,
        typer.Option(
            "--why",
            help="Also show the cause: model, data, options, tools or machine. Programs need their manifests; see "
            "`micronpu compile --manifest`.",
        ),
    ] = False,
    json: console.Json = False,
    report_html: Annotated[Path | None, console.option("PATH", "Write the differences as a web page.")] = None,
    debug: console.Debug = False,
) -> None:
    """Show what changed between two reports or two programs; exit code 1 if anything did.

    For reports (`micronpu compile --report-json`): delegation, time, memory, accuracy, bytes, moved operators and
    changed NPU operations. For programs: what the file shows.
    """
    from micronpu.report.delegation import DelegationReport
    from micronpu.report.difference import Difference, difference
    from micronpu.report.shown import shown

    if report_html is not None:
        check_writable(report_html)
    kinds = {path.suffix for path in (before, after)}
    if why and all(path.name.endswith(SUFFIX) for path in (before, after)):
        found = Difference(str(before), str(after), _of_manifests(before, after))
    elif kinds == {".pte"}:
        found = _of_programs(before, after, why=why)
    elif ".pte" in kinds:
        raise OptionError(
            f"{before} and {after} are a program and a report.", hint="two reports, or two programs, compiled alike"
        )
    else:
        found = difference(DelegationReport.load(before), DelegationReport.load(after), names=(str(before), str(after)))
    if why:
        found = replace(found, causes=causes(_basis(before), _basis(after)))
    if json:
        typer.echo(found.to_json())
    else:
        console.output().print(found)
    if report_html is not None:
        console.write(report_html, shown(found, "page"), console.words(console.STANDARD_OUTPUT))
    if found.is_any:
        raise typer.Exit(console.DIFFERENT)


def _basis(path: Path) -> Basis:
    """Return the inputs of a compilation, from a manifest, a report, or the manifest beside a program."""
    from micronpu.report.delegation import DelegationReport

    if path.suffix == ".pte":
        place = Manifest.beside(path)
        if not place.is_file():
            raise FileError(
                f"There is no {place.name} beside {path}, which records what the program was made of.",
                hint="micronpu compile --manifest",
            )
        manifest = Manifest.load(place)
        manifest.check_program(path)
        return manifest.basis
    if path.name.endswith(SUFFIX):
        return Manifest.load(path).basis
    basis = Basis.of_hashes(DelegationReport.load(path).hashes)
    if basis is None:
        raise ModelError(
            f"{path} does not say what its program was made of.", hint="a report of `micronpu compile` of this version"
        )
    return basis


def _of_manifests(before: Path, after: Path) -> tuple[Figure, ...]:
    from micronpu.report.difference import Figure

    first, second = Manifest.load(before), Manifest.load(after)
    others = first.hashes.get(first.program) != second.hashes.get(second.program)
    return (Figure("program, bytes", first.bytes, second.bytes), Figure("programs with other bytes", 0, int(others)))


def _of_programs(before: Path, after: Path, *, why: bool) -> Difference:
    """Compare two programs by their files."""
    from micronpu.report.difference import Difference, Figure

    files = {path: read_program(path) for path in (before, after)}
    first, second = (read_pte(files[path], name=str(path)) for path in (before, after))

    def io(summary: PteSummary) -> dict[str, object]:
        return {name: (m.inputs, m.outputs) for name, m in summary.methods.items()}

    if not why and io(first) != io(second):
        raise ModelError(
            f"{before} and {after} have different inputs or outputs.",
            hint="`micronpu inspect`, which shows them, or --why with the manifests of `micronpu compile --manifest`",
        )

    def numbers(path: Path, summary: PteSummary) -> dict[str, int]:
        found = {"file, bytes": len(files[path]), "delegates": len(summary.payloads)}
        for number, (backend, payload) in enumerate(summary.payloads):
            found[f"payload {number} ({backend}), bytes"] = len(payload)
        for name in summary.methods:
            calls = read_plan(files[path], name=str(path), method=name)[0].calls
            found |= {f"{name} calls {kind}": n for kind, n in Counter(c.operator for c in calls if c.operator).items()}
        return found

    a, b = numbers(before, first), numbers(after, second)
    figures = [Figure(name, a.get(name), b.get(name)) for name in dict.fromkeys((*a, *b))]
    changed = sum(mine != theirs for mine, theirs in zip(first.payloads, second.payloads, strict=False))
    figures.append(Figure("payloads with other bytes", 0, changed))
    figures.append(Figure("programs with other bytes", 0, int(files[before] != files[after])))
    return Difference(str(before), str(after), tuple(figures))


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
        str | None, typer.Option("--target", "-t", help="Chip file, if moved.", autocompletion=complete_target)
    ] = None,
    output: Annotated[Path | None, console.option("OUT.pte", "Write the program.", "--output", "-o")] = None,
    json: console.Json = False,
    no_cache: console.NoCache = False,
    debug: console.Debug = False,
) -> None:
    """Rebuild a program with the model, data and options of its manifest.

    Exit code 0 if identical, else 1 and the cause: model, data, options, tools or machine.
    """
    if output is not None:
        check_writable(output)
    wanted = Manifest.load(manifest)
    sources = found_sources(wanted.sources, manifest, model, calibration, library)
    program = _compiled(wanted, sources, target)
    same = hashlib.sha256(program.buffer).hexdigest() == wanted.hashes.get(wanted.program)
    found = causes(wanted.basis, program.basis)
    if json:
        data = {"same": same, "bytes": len(program.buffer), "causes": [encode(cause) for cause in found]}
        console.print_json(data)
    else:
        for line in _lines(wanted, program, found, same=same):
            console.say(line)
    if output is not None:
        program.save(output)
        console.say(f"Wrote {output}.", to=console.words(None))
    if not same:
        raise typer.Exit(console.DIFFERENT)


def _compiled(wanted: Manifest, sources: Sources, target: str | None) -> CompiledProgram:
    from micronpu.cli.files import load_with
    from micronpu.compiler.basis import CompileRequest
    from micronpu.report.warnings import AccuracyWarning

    pictures = Pictures(Path(sources.images), sources.normalize or None) if sources.images else NO_PICTURES
    pictures.check()
    asked = CompileRequest.read(wanted.basis.options, target or sources.chip or None)
    with console.progress() as callback, warnings.catch_warnings():
        loaded = load_with(sources.libraries, sources.model, callback)
        data = load_data(sources.calibration or None, pictures, loaded)
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
