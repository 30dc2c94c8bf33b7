"""The command `micronpu`."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import micronpu
from micronpu.base.errors import ErrorsAs, ModelError, OptionError, reason
from micronpu.base.files import check_writable, read_file, write_file
from micronpu.base.installed import VERSION
from micronpu.base.quiet import quiet
from micronpu.base.texts import plural
from micronpu.base.timing import timed
from micronpu.cli import console, hints
from micronpu.cli.analysis import advise, blame, evaluate, fix
from micronpu.cli.board import app as board_app
from micronpu.cli.calibrate import calibrate
from micronpu.cli.compare import compare
from micronpu.cli.compiled import read_program
from micronpu.cli.deploy import deploy, image, new, show_deployment
from micronpu.cli.diff import diff, reproduce
from micronpu.cli.disassemble import disassemble
from micronpu.cli.doctor import doctor
from micronpu.cli.listing import passes, targets
from micronpu.cli.options import Command, Group, Target, chosen_options, takes_npu_options
from micronpu.cli.reports import NOWHERE, Reports, show_times
from micronpu.cli.settings import (
    UNLIMITED,
    Calibration,
    How,
    Limits,
    ModelName,
    entries,
    names_of,
    only_one,
    quantization_of,
    value_of,
)
from micronpu.cli.settings import flag_of as budget_flag
from micronpu.cli.sources import NO_PICTURES, Pictures, load_data, sources_of
from micronpu.container.litert_view import element_name
from micronpu.container.litert_view import read_model as read_litert
from micronpu.deploy.folder import check_target
from micronpu.program.pte import read_pte
from micronpu.report.manifest import Manifest, Sources
from micronpu.targets.registry import BACKENDS, find_target

if TYPE_CHECKING:
    from rich.console import Console

    from micronpu import SparsityOptions
    from micronpu.cli.files import CalibrationInputs, Model
    from micronpu.compiler.program import CompiledProgram

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

InOut = Annotated[
    str | None, console.option("TYPE", "Integer inputs and outputs: int8, uint8 or int16.", "--io", default="floats")
]
MissingKernels = Annotated[
    bool,
    typer.Option(
        "--allow-missing-kernels", help="Allow operators without an ExecuTorch kernel, if you register your own."
    ),
]
Verify = Annotated[
    bool,
    typer.Option(
        "--verify/--no-verify",
        help="Run the program on a few samples and compare it with the quantized and the float model.",
    ),
]
Strict = Annotated[
    bool, typer.Option("--strict", help="Treat warnings as errors: do not write the program; exit code 3.")
]
HeldOut = Annotated[
    int | None,
    console.option(
        "ROWS",
        "Number of calibration samples (or recordings) to hold out, to measure accuracy on.",
        default="one in eight of 16 or more, or all beyond 32, at most 32",
    ),
]
Sparse = Annotated[
    list[str] | None,
    console.option(
        "2:4",
        "Prune two of every four weights first, for an NPU that computes such layers in half the cycles "
        f"({', '.join(f.sparse for f in BACKENDS.values() if f.sparse)}); needs a few hundred calibration inputs. "
        "Settings may follow: 2:4,max_loss=0.01 for the share of held-out samples whose top-1 result may change, "
        "max_cycles=0.7 to stop there; see docs/sparsity.md.",
    ),
]
Compress = Annotated[
    float | None,
    console.option(
        "PART",
        "Round weights to fewer bits for better compression, while at most this share of held-out top-1 results "
        "changes, e.g. 0.01.",
    ),
]


def _version(wanted: bool) -> None:
    if wanted:
        console.output().print(f"micronpu {VERSION}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """PyTorch models on the NPUs of microcontrollers."""


@app.command(name="compile", cls=Command)
@takes_npu_options("compile")
@console.guarded
@console.takes(limits=Limits, reports=Reports, pictures=Pictures)
def compile_command(
    context: typer.Context,
    model: ModelName,
    output: Annotated[
        Path | None,
        console.option(
            "OUT.pte",
            "Output file; OUT.tflite is one LiteRT model, with integer I/O.",
            "--output",
            "-o",
            default="FUNCTION.pte",
        ),
    ] = None,
    vela: Annotated[
        bool, typer.Option("--vela", help="Write Vela's command stream into OUT.tflite, for LiteRT Micro.")
    ] = False,
    deploy_to: Annotated[
        Path | None, console.option("DIR", "Also write the firmware folder, as `micronpu deploy` does.", "--deploy")
    ] = None,
    target: Target = "",
    calibration: Calibration = None,
    pictures: Pictures = NO_PICTURES,
    library: console.Library = None,
    io: InOut = None,
    quantization: How = None,
    allow_missing_kernels: MissingKernels = False,
    verify: Verify = True,
    verify_import: Annotated[
        bool,
        typer.Option(
            "--verify-import/--no-verify-import",
            help="Compare what was read of a LiteRT or ONNX file with the file's own runtime.",
        ),
    ] = True,
    strict: Strict = False,
    held_out: HeldOut = None,
    limits: Limits = UNLIMITED,
    sparse: Sparse = None,
    compress: Compress = None,
    manifest: Annotated[
        bool,
        typer.Option(
            "--manifest", help="Write OUT.manifest.json, from which `micronpu reproduce` rebuilds identical bytes."
        ),
    ] = False,
    in_float: Annotated[
        bool, typer.Option("--float", help="Write ExecuTorch's float program as a baseline: no quantization, no NPU.")
    ] = False,
    etrecord: Annotated[
        Path | None, console.option("PATH", "Also write an ETRecord, for ExecuTorch's Inspector.")
    ] = None,
    profile: Annotated[
        Path | None, console.option("PATH", "Show where compilation time went, and write it as JSON.")
    ] = None,
    reports: Reports = NOWHERE,
    no_cache: console.NoCache = False,
    debug: console.Debug = False,
) -> None:
    """Compile a PyTorch model to a .pte program.

    A float model is quantized first, with calibration data. If a budget is missed, or with --strict if there is a
    warning, only the reports are written, and the exit code is 3.
    """
    from micronpu.cli.files import load_with
    from micronpu.report.budgets import check_budgets, undecided
    from micronpu.report.warnings import AccuracyWarning, check_strict, check_strict_use

    # Refuse everything that can be checked without torch before torch is loaded.
    reports.check()
    options = None if in_float and not target else chosen_options(context, find_target(target))
    budgets = limits.budgets()
    check_strict_use(strict, verify, named={"strict=True": "--strict", "verify=False": "--no-verify"}.__getitem__)
    pictures.check(calibration)
    _check_places((output, etrecord, profile), deploy_to, vela, manifest)
    _check_float(context, in_float)
    with timed(profile is not None) as times, console.progress() as callback, warnings.catch_warnings():
        loaded = load_with(library, model, callback, verify_import)
        destination = context.params["output"] = output or Path(f"{loaded.name}.pte")
        check_writable(destination)
        if in_float:
            return _write_float(loaded, destination)
        data = load_data(calibration, pictures, loaded)
        callback("load", 1.0)
        warnings.simplefilter("ignore", AccuracyWarning)  # the report shows them
        program = micronpu.compile(
            loaded.module,
            loaded.examples,
            target,
            calibration=data if calibration or pictures.images or not loaded.is_quantized else None,
            quantization=quantization_of(quantization, io),
            options=options,
            verify=limits.verification(loaded, run=verify, held_out=held_out, missing=allow_missing_kernels),
            transforms=micronpu.Transforms(sparsity=_sparsity(sparse), compress=compress),
            callback=callback,
        )
    results = budgets.results(program.report, budget_flag) + limits.accuracy(loaded, program)
    doubts = (*program.report.warnings, *undecided(results, budget_flag))
    program = program.with_report(replace(program.report, budgets=results, warnings=doubts))
    out = reports.words
    _report_on(program, data, reports)
    check_budgets(results, program.report, budget_flag, strict=strict)
    if strict:
        check_strict(program.report.warnings)
    elif out.quiet:
        console.warn(program.report.warnings)
    # Write the program last, so that it exists only if everything succeeded.
    sources = sources_of(model, data, pictures, library, target, destination) if manifest else None
    _write(program, destination, vela, etrecord, sources, out)
    if deploy_to is not None:
        show_deployment(program.deploy(deploy_to, target=target), out)
    console.say(f"Wrote {destination}: {program.report.summary()}.", "bold", to=out)
    if deploy_to is None and destination.suffix != ".tflite":
        _show_next(program, context, destination, out)
    if times is not None and profile is not None:
        show_times(times, profile, out)


def _show_next(program: CompiledProgram, context: typer.Context, path: Path, out: Console) -> None:
    """Print the command that writes the firmware folder, and the one that looks for faster models, if no hint does."""
    target = context.params["target"]
    line = ["micronpu", "deploy", str(path), "-o", f"{path.stem}-firmware"]
    line += [] if find_target(target).chip is None else ["--for", target]
    console.say(f"Next, the firmware folder: {shlex.join(line)}", to=out)
    if "`micronpu advise`" not in str(program.report.next_steps):
        for own in hints.command_line("advise", context):
            console.say(f"Or, to make it faster: {own}", to=out)


def _write(
    program: CompiledProgram, path: Path, vela: bool, etrecord: Path | None, sources: Sources | None, out: Console
) -> None:
    """Write the program and the other files that were requested, and print their names."""
    if sources is not None:
        place = program.manifest(path, sources).save(Manifest.beside(path))
        console.say(f"Wrote {place}.", to=out)
    program.save(path, vela=vela)
    if path.suffix == ".tflite":
        file = read_litert(read_file(path))
        types = " and ".join(sorted({element_name(file.tensors[i].type) for i in (*file.inputs, *file.outputs)}))
        console.say(f"The inputs and outputs of {path} are {types}, with scale and zero point in the file.", to=out)
        what = "The file is written with what this target computes, and may be slow on another"
        console.say(f"{what}: compile the float model for that one.", to=out)
    if etrecord is not None:
        program.save_etrecord(etrecord)
        console.say(f"Wrote {etrecord}.", to=out)
    for name in program.data_files if path.suffix != ".tflite" else ():
        console.say(f"Wrote {path.parent / name}, which the board needs as well.", to=out)


_WITH_FLOAT = {"in_float", "model", "output", "library", "debug", "no_cache", "quiet", "verify_import"}


def _write_float(loaded: Model, destination: Path) -> None:
    """Write ExecuTorch's program with portable float kernels, without quantization and NPU, and print a sentence."""
    from executorch.exir import to_edge_transform_and_lower

    from micronpu.frontend.export import export
    from micronpu.frontend.exported import exported

    if not exported(loaded.module, loaded.examples).is_float:
        raise ModelError("The model is quantized already, and --float is about the float model.", hint="that one")
    what, hint = "ExecuTorch cannot lower the float model", "micronpu compile without --float, which says more"
    with ErrorsAs(lambda error: ModelError(f"{what}: {reason(error)}.", hint=hint)), quiet():
        data = to_edge_transform_and_lower(export(loaded.module, loaded.examples)).to_executorch().buffer
    write_file(destination, data)
    (method,) = read_pte(data).methods.values()
    kernels = plural(len(set(method.operators)), "kernel")
    console.say(f"Wrote {destination}: {len(data):,} bytes, {kernels} of ExecuTorch in float, nothing on an NPU.")


def _check_float(context: typer.Context, wanted: bool) -> None:
    """Refuse options about quantization or NPUs for a float program."""
    if not wanted:
        return
    for name in (name for name in context.params if name not in _WITH_FLOAT):
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise OptionError(
                f"--float makes ExecuTorch's own program, for which {console.flag_of(name)} has no meaning.",
                hint="one of the two",
            )


def _sparsity(given: Sequence[str] | None) -> SparsityOptions | None:
    if not given:
        return None
    words, pairs = entries(given)
    names = [name for name in names_of(micronpu.SparsityOptions) if name != "pattern"]
    if unknown := [name for name in pairs if name not in names]:
        raise OptionError(f"--sparse has no setting {unknown[0]!r}.", hint=f"one of {', '.join(names)}")
    pattern = only_one("--sparse", words, "one pattern")
    if pattern is None:
        raise OptionError("--sparse has settings, and no pattern.", hint="--sparse 2:4,...")
    settings: dict[str, Any] = {name: value_of(text) for name, text in pairs.items()}
    return micronpu.SparsityOptions(pattern=pattern, **settings)


def _report_on(program: CompiledProgram, data: CalibrationInputs, reports: Reports) -> None:
    reports.show(program.report, program.seconds)
    if program.report.sparsity is not None:
        reports.words.print(program.report.sparsity)
    if data.used is not None:
        console.say(f"Calibrated with {data.source}: {plural(data.used, 'input')}.", to=reports.words)
    reports.write(program.report)


def _check_places(files: Sequence[Path | None], deploy_to: Path | None, vela: bool, manifest: bool) -> None:
    """Check that all outputs, the program first, can be written in the form that the options select."""
    if vela and (files[0] is None or files[0].suffix != ".tflite"):
        raise OptionError("--vela is for a LiteRT model.", hint="-o model.tflite")
    if manifest and files[0] is not None and files[0].suffix == ".tflite":
        raise OptionError("--manifest is about a program.", hint="-o model.pte")
    for path in files:
        if path is not None:
            check_writable(path)
    if deploy_to is not None:
        check_target(deploy_to, force=False)


@app.command(cls=Command)
@takes_npu_options("check")
@console.guarded
@console.takes(reports=Reports)
def check(
    context: typer.Context,
    model: ModelName,
    target: Target = "",
    require_full: Annotated[
        bool,
        typer.Option(
            "--require-full", help="Exit with code 1 unless every operator is on the NPU (on a core: quantized)."
        ),
    ] = False,
    io: InOut = None,
    quantization: How = None,
    library: console.Library = None,
    reports: Reports = NOWHERE,
    no_cache: console.NoCache = False,
    debug: console.Debug = False,
) -> None:
    """Show what would run on the NPU, and why the rest would not, without compiling.

    Needs no calibration data. Exit code 3 if an operator outside of the NPU has no ExecuTorch kernel, otherwise 0.
    """
    from micronpu.cli.files import load_with

    reports.check()
    options = chosen_options(context, find_target(target))
    with console.progress() as callback:
        loaded = load_with(library, model, callback)
        callback("load", 1.0)
        callback("partition", 0.0)
        report = micronpu.check(
            loaded.module, loaded.examples, target, quantization=quantization_of(quantization, io), options=options
        ).report
    reports.show(report)
    reports.write(report)
    from micronpu.report.warnings import check_runs

    check_runs(report.warnings)
    for line in hints.command_line("compile", context):
        console.say(f"Next, time, memory and accuracy: {line}", to=reports.words)
    if require_full and report.left_over:
        raise typer.Exit(1)


@app.command(cls=Command)
@console.guarded
def run(
    program: Annotated[Path, console.argument("PROGRAM.pte", "The program of `micronpu compile`.")],
    inputs: Annotated[
        list[str] | None,
        console.option(
            "FILE",
            "An input: FILE.npy, or FILE.npz with all inputs in order (FILE.npz:name,... picks arrays). Once per "
            "input of the program.",
            "--input",
            "-i",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        console.option(
            "DIR", "Write output_0.npy, output_1.npy ... into this folder; created if missing.", "--output", "-o"
        ),
    ] = None,
    rows: Annotated[
        bool, typer.Option("--rows", help="Inputs hold several samples: run once per row and stack the outputs.")
    ] = False,
    fast: Annotated[
        bool, typer.Option("--fast", help="Fast kernels, which may differ by one LSB from the bit-exact ones.")
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Compare the commands of the NPU with the integer graph that the program carries "
            f"({', '.join(f.title for f in BACKENDS.values() if f.has_proof)}).",
        ),
    ] = False,
    isolated: Annotated[
        bool | None,
        typer.Option(
            "--isolated/--not-isolated",
            help="Run in a separate process, safe for damaged programs that crash.",
            show_default="isolated unless the program carries the digest that `micronpu compile` writes",
        ),
    ] = None,
    time_limit: Annotated[
        float | None,
        console.option(
            "SECONDS",
            "Stop an isolated program that takes longer to load or to run; 0 for no limit.",
            "--time-limit",
            default="600",
        ),
    ] = None,
    profile: Annotated[
        Path | None,
        console.option(
            "PATH",
            "Write an ETDump of the run for ExecuTorch's Inspector, and what each operation wrote as PATH.values.",
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        console.option(
            "PATH.json",
            "Write when each operator and operation ran, for chrome://tracing and Perfetto: this machine's times, or "
            "those of --recorded.",
        ),
    ] = None,
    recorded: Annotated[Path | None, console.option("ETDUMP", "Build the trace from a board's ETDump.")] = None,
    json: console.JsonInstead = False,
    debug: console.Debug = False,
) -> None:
    """Run a .pte program on this machine: ExecuTorch's runtime, the NPU's part in the simulator."""
    from micronpu.cli.execute import Records, run_program

    with console.progress() as callback:
        done = run_program(
            program,
            inputs or [],
            output,
            rows=rows,
            fast=fast,
            check=check,
            isolated=isolated,
            time_limit=time_limit,
            records=Records(profile, trace, recorded),
            callback=callback,
        )
    out = console.words(console.json_path(json, None))
    for line in (*done.notes, *done.lines(), *done.wrote):
        console.say(line, to=out)
    if json:
        console.print_json(done.to_dict())


@app.command(cls=Command)
@console.guarded
def inspect(
    program: Annotated[Path, console.argument("PROGRAM.pte", "A finished program.")],
    json: console.Json = False,
    debug: console.Debug = False,
) -> None:
    """Show the contents of a .pte program: inputs, outputs, host operators, and the blocks of each NPU payload."""
    from micronpu.cli.inspection import inspect_pte, inspection_view

    with console.at_work("read"):
        found = inspect_pte(read_program(program), str(program))
    if json:
        console.print_json(found.to_dict())
    else:
        console.output().print(inspection_view(found))


app.command(cls=Command)(evaluate)
for _name, _command in (("blame", blame), ("fix", fix), ("advise", advise)):
    app.command(cls=Command)(takes_npu_options(_name)(_command))
for _plain in (compare, calibrate, diff, reproduce, deploy, image, new, doctor, disassemble, targets, passes):
    app.command(cls=Command)(_plain)
app.add_typer(board_app, name="board", help="Run programs and firmware on an emulated board, or firmware on yours.")
