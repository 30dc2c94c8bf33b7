"""`micronpu board`: programs and firmware on an emulated board."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from micronpu.base.errors import OptionError
from micronpu.base.files import check_writable, read_file, write_file
from micronpu.cli import console
from micronpu.cli.compiled import is_model, program_of
from micronpu.cli.deploy import FOR, ModelBuild, build_command, run_on_probe
from micronpu.cli.options import Command

if TYPE_CHECKING:
    from micronpu.board.check import BoardOutcome, MachineOptions
    from micronpu.board.model import BoardModel
    from micronpu.board.npu import Npu, Run
    from micronpu.board.nsys import NsysBoard
    from micronpu.board.probe import ProbeOptions
    from micronpu.deploy.vectors import Run as RunRow
    from micronpu.deploy.vectors import Vectors

USUAL = "corstone300"

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", pretty_exceptions_enable=False)

TimeLimit = Annotated[
    float, console.option("SECONDS", "Time limit of the start, and of each vector.", "--time-limit", default="120")
]
Fault = Annotated[
    str | None,
    console.option(
        "bus|hang|reset", "Let the NPU go wrong: a bus error, a run or a reset that never ends.", default="no fault"
    ),
]
Slow = Annotated[
    float | None,
    console.option(
        "MHZ", "Raise interrupts as late as the estimate says at this clock of the NPU, so that races show.",
        default="at once",
    ),
]  # fmt: skip
Trace = Annotated[bool, typer.Option("--trace", help="List what each run of the NPU does and what it writes.")]

_RESET = console.option(
    "COMMAND", "The server's command that resets and halts, such as `reset` of J-Link.", default="reset halt"
)


@dataclass(frozen=True)
class Probe:
    """Options of a board behind a GDB server."""

    gdb: Annotated[
        str | None,
        console.option(
            "HOST:PORT",
            "Run firmware on the board behind this GDB server (OpenOCD, pyOCD, J-Link).",
            default="an emulated board",
        ),
    ] = None
    serial: Annotated[
        str | None, console.option("PORT@BAUD", "Serial port of the console, with --gdb.", default="semihosting")
    ] = None
    reset: Annotated[str | None, _RESET] = None
    log: Annotated[
        Path | None, console.option("FILE", "Write the console to this file, with --gdb; for `micronpu calibrate`.")
    ] = None

    def options(self, seconds: float) -> ProbeOptions:
        from micronpu.board.check import MachineOptions
        from micronpu.board.probe import ProbeOptions

        MachineOptions(seconds=seconds)  # refuses a time that is no limit
        if self.gdb is None:
            raise OptionError(
                "--serial, --reset and --log are for a board behind a GDB server.", hint="--gdb HOST:PORT"
            )
        return ProbeOptions(self.gdb, self.serial or "", self.reset or "", seconds)


@app.command(cls=Command)
@console.guarded
@console.takes(board_probe=Probe, how=ModelBuild)
def run(
    file: Annotated[
        Path,
        console.argument(
            "FILE", "A .pte, a .tflite of `save(vela=True)`, a firmware's ELF file, or a model, to be compiled for it."
        ),
    ],
    board_probe: Probe,
    how: ModelBuild,
    vectors: Annotated[
        str | None,
        console.option(
            "FILE",
            "Inputs of a program: FILE.npz with an array per input, a row per vector. Arrays output_0, output_1 ... "
            "are the "
            "expected outputs; without them this machine computes them.",
            default="numbers over the range of each input",
        ),
    ] = None,
    npu: Annotated[
        str | None,
        console.option("NAME", "The board's NPU; see `micronpu targets`.", default="the one that the model is for"),
    ] = None,
    data: Annotated[
        list[str] | None, console.option("FILE@ADDRESS", "Load a file into memory before the firmware starts.")
    ] = None,
    dump: Annotated[
        list[str] | None, console.option("FILE@ADDRESS,SIZE", "Write memory to a file when the firmware has ended.")
    ] = None,
    reference: Annotated[
        Path | None,
        console.option(
            "FILE.pte",
            "Program to compare with: for NXP's simulator the same model compiled with `--converter reference`, with "
            "--gdb "
            "the program of the firmware. This machine runs it on --vectors.",
            default="output_0 and so on of --vectors",
        ),
    ] = None,
    method: Annotated[
        str | None, console.option("NAME", "The method to run.", default="each, from its first states on")
    ] = None,
    runner: Annotated[
        Path | None,
        console.option(
            "PATH", "ExecuTorch's nxp_executor_runner, for NXP's simulator.", default="NXP_RUNNER_PATH, or the PATH's"
        ),
    ] = None,
    measurement: Annotated[
        Path | None,
        console.option(
            "FILE.toml",
            "Write the cycles that a firmware prints to this file, with chip, program and tools; for `micronpu "
            "calibrate`.",
        ),
    ] = None,
    show: Annotated[
        bool, typer.Option("--console", help="Show what the runner prints; a firmware's is shown.")
    ] = False,
    trace: Trace = False,
    fault: Fault = None,
    slow: Slow = None,
    time_limit: TimeLimit = 120.0,
    json: console.Json = False,
    debug: console.Debug = False,
) -> None:
    """Run a program in Arm's own firmware on an emulated board, or any firmware on it or on your board.

    Outputs of a program are compared with those of this machine: exit code 1 if an element differs. A
    firmware's exit status becomes the command's; with --gdb it runs on your own board, for which a .pte is deployed and
    built first. With --board imxrt700 a Neutron program for silicon runs in NXP's simulator, where that is installed.
    """
    from micronpu.board.check import MachineOptions
    from micronpu.board.nsys_tools import chips

    board = how.board or USUAL
    content = _content(file, board, board_probe)
    is_firmware = content[:4] == b"\x7fELF"
    if measurement is not None:
        check_writable(measurement)
    emulated = npu or data or dump or trace or fault or slow is not None
    if board_probe != Probe():
        if emulated or method or runner:
            raise OptionError(
                "--npu, --data, --dump, --method, --runner, --trace, --fault and --slow are for emulated boards.",
                hint="leave them out, or leave --gdb out",
            )
        at = board_probe.options(time_limit)
        files = (board_probe.log, measurement)
        run_on_probe(file, how, at, reference, vectors, files, json=json, print_bytes=_print_bytes)
        return
    replace(how, board=None).check_unused("--gdb HOST:PORT: they are for a .pte on a board behind a GDB server")
    if measurement is not None and not is_firmware:
        raise OptionError(
            "--measurement is for a firmware: what a model takes on an emulated board is an estimate.",
            hint="`micronpu deploy`, and the firmware on your board with --gdb",
        )
    options = MachineOptions(npu or "", fault or "", slow or 0.0, time_limit)
    if board in chips():
        if emulated:
            raise OptionError(
                "NXP's simulator has no --npu, --data, --dump, --trace, --fault and --slow.", hint="leave them out"
            )
        from micronpu.board.nsys import NsysBoard, read_silicon

        silicon = read_silicon(content, str(file), method=method or "")
        simulated = NsysBoard(silicon, board, runner=str(runner or ""), seconds=time_limit)
        _run_in_nsys(simulated, vectors, reference, show=show, json=json)
        return
    if reference is not None or runner is not None:
        raise OptionError(
            "--reference and --runner are for programs in NXP's simulator.", hint=f"--board {next(iter(chips()))}"
        )
    if is_firmware:
        if vectors is not None or method is not None:
            raise OptionError("--vectors and --method are for a model.", hint="--data FILE@ADDRESS for a firmware")
        _run_firmware(file, board, data or [], dump or [], options, measurement, trace=trace, json=json)
        return
    if data or dump:
        raise OptionError("--data and --dump are for a firmware.", hint="--vectors FILE.npz for a model")
    _run_model(file, content, board, vectors, options, method=method, show=show, trace=trace, json=json)


def _content(file: Path, board: str, probe: Probe) -> bytes:
    """Return the bytes of a file, or of the program of a model, compiled for the board."""
    from micronpu.board.boards import find_board
    from micronpu.board.nsys_tools import chips
    from micronpu.board.runners import find_runner

    if is_model(file) and probe != Probe():
        what = f"{file} is a model, and --gdb takes a program or a firmware."
        raise OptionError(what, hint=f"micronpu compile {file} -t TARGET -o net.pte, and then net.pte")
    if is_model(file) and board not in chips():
        find_runner(board, "pte", *find_board(board).families[:1])  # before it is compiled for a board that has none
    return program_of(file, board)[0]


def _run_model(
    file: Path,
    data: bytes,
    board: str,
    vectors: str | None,
    options: MachineOptions,
    *,
    method: str | None,
    show: bool,
    trace: bool,
    json: bool,
) -> None:
    from micronpu.board.check import check_on_board
    from micronpu.board.model import methods_of, read_model

    begin = time.perf_counter()
    names = methods_of(data, str(file)) if method is None else (method,)
    if vectors is not None and len(names) > 1:
        raise OptionError(
            f"--vectors are for one method, and {file} has {', '.join(names)}.", hint=f"--method {names[0]}"
        )
    outcomes = []
    for name in names:  # a new board for each method: Arm's runner loads one method
        model = read_model(data, str(file) if len(names) == 1 else f"{file}, method {name}", method=name)
        outcome = check_on_board(
            model,
            _vectors(model, vectors),
            board,
            options,
            console=_print_bytes if show and not json else None,
            on_run=None if json or not trace else _print_run,
        )
        outcomes.append(outcome)
    _show(outcomes, json=json, seconds=time.perf_counter() - begin)


def _run_in_nsys(board: NsysBoard, vectors: str | None, reference: Path | None, *, show: bool, json: bool) -> None:
    from micronpu.board.check import check_in_nsys
    from micronpu.board.check import reference as on_this_machine
    from micronpu.board.nsys import check_same_io, read_program
    from micronpu.cli.files import load_arrays
    from micronpu.deploy.vectors import from_arrays, made_up

    model = board.model
    run: RunRow | None = None
    if reference is not None:
        other = read_program(read_file(reference), str(reference))
        check_same_io(model, other)
        run = on_this_machine(other)
    arrays = None if vectors is None else load_arrays(vectors)
    if run is None and (arrays is None or not any(name.startswith("output_") for name in arrays)):
        raise OptionError(
            "The expected outputs are unknown: this machine cannot run a program for silicon.",
            hint="--reference FILE.pte, the same model compiled with --converter reference; or --vectors with output_0",
        )

    runs = run or (lambda row: ())  # not called: the vectors have their outputs
    rows = (
        made_up(model.inputs, runs)
        if arrays is None
        else from_arrays(arrays, model.inputs, model.outputs, runs, str(vectors))
    )
    outcome = check_in_nsys(model, rows, board, console=_print_bytes if show and not json else None)
    _show([outcome], json=json)


def _show(outcomes: Sequence[BoardOutcome], *, json: bool, seconds: float | None = None) -> None:
    """Print the outcome of each method."""
    if json:
        data = outcomes[0].to_dict() if len(outcomes) == 1 else {"methods": [one.to_dict() for one in outcomes]}
        console.print_json(data | ({} if seconds is None else {"seconds": round(seconds, 3)}))
    else:
        for outcome in outcomes:
            for line in outcome.lines():
                console.say(line, "green" if outcome.equal else "red")
    if not all(outcome.equal for outcome in outcomes):
        raise typer.Exit(console.DIFFERENT)


def _vectors(model: BoardModel, text: str | None) -> Vectors:
    from micronpu.board.check import reference
    from micronpu.cli.files import load_arrays
    from micronpu.deploy.vectors import from_arrays, made_up

    run = reference(model)
    if text is None:
        return made_up(model.inputs, run)
    return from_arrays(load_arrays(text), model.inputs, model.outputs, run, text)


def _run_firmware(
    file: Path,
    board: str,
    data: list[str],
    dump: list[str],
    options: MachineOptions,
    measurement: Path | None,
    *,
    trace: bool,
    json: bool,
) -> None:
    from micronpu.board.check import run_firmware
    from micronpu.board.logs import write_measurement

    dumps = [_place(text.rpartition(",")[0], text, text.rpartition(",")[2]) for text in dump]
    done = run_firmware(
        file,
        board,
        options,
        data=[_place(text, text)[:2] for text in data],
        dumps=[(address, size) for _, address, size in dumps],
        console=None if json else _print_bytes,
        on_run=None if json or not trace else _print_run,
    )
    for (path, _, _), content in zip(dumps, done.memory, strict=True):
        write_file(path, content)
    if json:
        console.print_json(done.to_dict())
    else:
        console.say(done.line(), "dim", to=console.errors())
    if done.status:
        raise typer.Exit(done.status)
    if measurement is not None:
        write_measurement(measurement, done.output.encode(), read_file(file), board, is_emulated=True)


def _place(text: str, whole: str, size: str = "0") -> tuple[Path, int, int]:
    """Parse FILE@ADDRESS, and the size of FILE@ADDRESS,SIZE, in bytes."""
    name, _, address = text.rpartition("@")
    try:
        place, count = int(address, 0), int(size, 0)
    except ValueError:
        place = count = -1
    if not name or not 0 <= place < 1 << 32 or not 0 <= count < 1 << 32:
        raise OptionError(f"{whole!r} is no FILE@ADDRESS, or FILE@ADDRESS,SIZE.", hint="out.bin@0x93000000,1024")
    return Path(name), place, count


def _print_bytes(data: bytes) -> None:
    """Write the firmware's output as it arrives; show what a terminal obeys, but for the end mark of Arm's firmware."""
    text = data.replace(b"\x04", b"").replace(b"\r", b"").decode(errors="replace")
    sys.stdout.write("".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text))
    sys.stdout.flush()


def _print_run(npu: Npu, run: Run) -> None:
    from micronpu.board.check import trace_lines

    for line in trace_lines(npu, run):
        console.say(line, "cyan")


@app.command(cls=Command)
@console.guarded
def debug(
    file: Annotated[Path, console.argument("FIRMWARE.elf", "The firmware.")],
    board: Annotated[
        str, console.option("NAME", "The board; see `micronpu board list`.", "--board", "-b", *FOR, default=USUAL)
    ] = USUAL,
    npu: Annotated[
        str | None,
        console.option("NAME", "The board's NPU; see `micronpu targets`.", default="the smallest of its family"),
    ] = None,
    data: Annotated[
        list[str] | None, console.option("FILE@ADDRESS", "Load a file into memory before the firmware starts.")
    ] = None,
    port: Annotated[int, console.option("PORT", "Port for gdb; 0 for a free one.")] = 1234,
    trace: Trace = False,
    fault: Fault = None,
    debug: console.Debug = False,
) -> None:
    """Run firmware under gdb (localhost).

    In another terminal: gdb-multiarch FIRMWARE.elf -ex "target remote :1234"
    """
    from micronpu.board.boards import find_board
    from micronpu.board.check import MachineOptions, npus_of
    from micronpu.board.debug import DebugServer
    from micronpu.board.elf import Elf
    from micronpu.board.machine import Machine

    options = MachineOptions(npu or "", fault or "")
    if not 0 <= port < 1 << 16:
        raise OptionError(f"{port} is no port of TCP.", hint="--port 1234")
    spec = find_board(board)
    Elf.read(file)
    with Machine(
        spec,
        file,
        npus_of(spec, options.npu),
        data=[_place(text, text)[:2] for text in data or []],
        console=_print_bytes,
        on_run=_print_run if trace else None,
        fault=options.fault,
    ) as machine:
        server = DebugServer(machine, port)
        line = f'Waiting for gdb: gdb-multiarch {file} -ex "target remote :{server.port}"'
        console.say(line, to=console.errors())
        server.serve()


@app.command(cls=Command)
@console.guarded
def install(
    wheel: Annotated[
        Path | None, console.option("FILE.whl", "A copy of the package, for a machine without a network.")
    ] = None,
    debug: console.Debug = False,
) -> None:
    """Fetch Arm's inference runners from PyPI: pinned by hash; nothing is executed."""
    from micronpu.board import runners

    data = runners.package()
    folder = runners.install(wheel)
    console.say(f"Installed {len(data.runners)} runners of {data.name} {data.version} ({data.licence}) in {folder}.")


@app.command(cls=Command)
@console.guarded
def log(
    file: Annotated[Path, console.argument("FILE", "Console log, from the start to PASS or FAIL.")],
    output: Annotated[
        Path | None,
        console.option("FOLDER", "Write there what was printed as bytes.", "--output", "-o", default="only list it"),
    ] = None,
    json: console.Json = False,
    debug: console.Debug = False,
) -> None:
    """Extract outputs, values and an ETDump from the console log of a deployed folder, and list cycles.

    NAME.npz has the outputs of each vector, as `micronpu deploy --vectors` takes them; NAME_values.npz what each
    instruction computed; run.etdump is for `micronpu run --recorded`, and for ExecuTorch's Inspector.
    """
    from micronpu.cli.probe import log_view, written

    found = log_view(read_file(file, "The log"), file.name)
    wrote = written(found.printed, output) if output is not None else []
    if json:
        console.print_json({**found.to_json(), "wrote": [str(path) for path in wrote]})
        return
    for line in (*found.lines(), *(f"Wrote {path}." for path in wrote)):
        console.say(line)


@app.command(cls=Command)
@console.guarded
def flash(
    file: Annotated[Path, console.argument("FIRMWARE.elf", "The firmware.")],
    gdb: Annotated[str, console.option("HOST:PORT", "The GDB server.", "--gdb")],
    reset: Annotated[str | None, _RESET] = None,
    time_limit: Annotated[
        float, console.option("SECONDS", "Time limit of each response of the server.", default="120")
    ] = 120.0,
    debug: console.Debug = False,
) -> None:
    """Write firmware to a board behind a GDB server, read it back, and leave the core halted.

    Flash is erased in whole blocks: what else is in them is lost.
    """
    from micronpu.board import probe

    said = probe.flash(file, Probe(gdb, reset=reset).options(time_limit))
    console.say(said)


@app.command(name="list", cls=Command)
@console.guarded
def list_boards(
    probes: Annotated[bool, typer.Option("--probes", help="List the debug probes that pyOCD sees instead.")] = False,
    json: console.Json = False,
    debug: console.Debug = False,
) -> None:
    """List the boards, and which models Arm has runners for on each."""
    from micronpu.board.boards import boards
    from micronpu.board.nsys_tools import chips
    from micronpu.board.runners import package

    if probes:
        from micronpu.cli.probe import probes as connected

        found = connected()
        if json:
            console.print_json(found)
        for one in () if json else found:
            console.say(f"{one['id']}  {one['name']}")
        return
    if json:
        console.print_json([asdict(board) for board in boards().values()])
        return
    for board in boards().values():
        runners = [f".{r.format} for {r.npu}" for r in package().runners if r.board == board.name]
        line = f"{board.name:14} {board.title}; {board.machine}"
        line += f"; runners: {', '.join(runners)}" if runners else ""
        console.say(line + (f" ({board.note})" if board.note else ""))
    for chip in chips().values():
        console.say(f"{chip.name:14} {chip.title}; NXP's simulator and ExecuTorch's runner, which you have to have")


app.command(name="build", cls=Command)(build_command)

__all__ = ["app"]
