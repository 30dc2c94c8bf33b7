"""`micronpu board run --gdb`, `board flash` and `board list --probes`: boards behind a GDB server."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from micronpu.base.errors import FileError, MicroNpuError, OptionError
from micronpu.base.files import read_file, write_file
from micronpu.cli import console

if TYPE_CHECKING:
    from collections.abc import Callable

    from micronpu.board.probe import ProbeOptions, Reference

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
            "Of a firmware: write it to the board of this GDB server (OpenOCD, pyOCD, J-Link), and run it there.",
            default="an emulated board",
        ),
    ] = None
    serial: Annotated[
        str | None,
        console.option("PORT@BAUD", "With --gdb: the console is this serial port.", default="semihosting"),
    ] = None
    reset: Annotated[str | None, _RESET] = None
    log: Annotated[
        Path | None,
        console.option("FILE", "With --gdb: write there what the firmware prints, for `micronpu calibrate`."),
    ] = None

    def options(self, seconds: float) -> ProbeOptions:
        """The board.

        Raises:
            OptionError: it is not named.
        """
        from micronpu.board.check import MachineOptions, check_limits
        from micronpu.board.probe import ProbeOptions

        check_limits(MachineOptions(seconds=seconds))
        if self.gdb is None:
            raise OptionError(
                "--serial, --reset and --log are for a board behind a GDB server.", hint="--gdb HOST:PORT"
            )
        return ProbeOptions(self.gdb, self.serial or "", self.reset or "", seconds)


Reset = Annotated[str | None, _RESET]


def run_firmware(
    file: Path,
    probe: Probe,
    reference: Path | None,
    vectors: str | None,
    seconds: float,
    *,
    json: bool,
    print_bytes: Callable[[bytes], None],
) -> None:
    """Runs a firmware on a board and shows what it has shown; exits with its status."""
    from micronpu.board.probe import run_on_probe
    from micronpu.cli.printed import log_view

    options = probe.options(seconds)
    if (reference is None) != (vectors is None):
        raise OptionError(
            "With --gdb, --reference and --vectors go together: the program and the vectors of the firmware.",
            hint="--reference model.pte --vectors inputs.npz; neither of them, and the firmware compares by itself",
        )
    wanted = _reference(reference, vectors) if reference is not None and vectors is not None else None
    done = run_on_probe(file, options, reference=wanted, console=None if json else print_bytes)
    if probe.log is not None:
        write_file(probe.log, done.output)
    measured: list[str] = []
    with contextlib.suppress(FileError):  # it has printed no times
        measured = [line for line in log_view(done.output, file.name).lines() if "cycles" in line]
    if json:
        console.print_json(done.to_dict() | {"measured": measured})
    else:
        for line in (*done.lines(), *measured):
            console.output().print(Text(line, style="red" if done.exit_code else "green"), soft_wrap=True)
    if done.exit_code:
        raise typer.Exit(done.exit_code)


def _reference(file: Path, vectors: str) -> Reference:
    """The program that the firmware contains, and its vectors with the outputs of this machine."""
    from micronpu.board.check import reference
    from micronpu.board.nsys import read_program
    from micronpu.board.probe import Reference
    from micronpu.cli.files import load_arrays
    from micronpu.deploy.vectors import from_arrays
    from micronpu.program.pte import read_pte

    data = read_file(file)
    program = read_program(data, str(file))
    rows = from_arrays(load_arrays(vectors), program.inputs, program.outputs, reference(program), vectors)
    payloads = read_pte(data).payloads
    return Reference.of(file.stem, payloads[0][1] if payloads else None, rows)


@console.guarded
def flash(
    file: Annotated[Path, console.argument("FIRMWARE.elf", "The firmware.")],
    gdb: Annotated[str, console.option("HOST:PORT", "The GDB server.", "--gdb")],
    reset: Reset = None,
    time_limit: Annotated[float, console.option("SECONDS", "For each answer of the server.", default="120")] = 120.0,
    debug: console.Debug = False,
) -> None:
    """Write firmware to a board behind a GDB server, read it back, and leave the core halted.

    Flash is erased in whole blocks: what else is in them is lost.
    """
    from micronpu.board import probe

    said = probe.flash(file, Probe(gdb, reset=reset).options(time_limit))
    console.output().print(Text(said), soft_wrap=True)


def probes() -> list[dict[str, str]]:
    """The debug probes that pyOCD sees: their name and identity.

    Raises:
        OptionError: pyOCD is not installed.
        MicroNpuError: it fails.
    """
    try:
        from pyocd.core.helpers import ConnectHelper
    except ImportError as error:
        raise OptionError("Probes are listed by pyOCD, which is not installed.", hint="pip install pyocd") from error
    try:
        found = ConnectHelper.get_all_connected_probes(blocking=False)
    except Exception as error:
        raise MicroNpuError(f"pyOCD cannot list the probes: {error}.", hint="pyocd list") from error
    return [{"name": probe.description, "id": probe.unique_id} for probe in found]
