"""`micronpu board run --gdb`, `board flash` and `board list --probes`: boards behind a GDB server."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.text import Text

from micronpu.base.errors import FileError, MicroNpuError, OptionError
from micronpu.base.files import read_file, write_file
from micronpu.cli import console

if TYPE_CHECKING:
    from collections.abc import Callable

    from micronpu.board.probe import ExpectedOutputs, ProbeOptions


def run_firmware(
    file: Path,
    options: ProbeOptions,
    reference: Path | None,
    vectors: str | None,
    files: tuple[Path | None, Path | None],
    *,
    json: bool,
    print_bytes: Callable[[bytes], None],
) -> None:
    """Runs a firmware on a board and shows what it has shown; exits with its status.

    Args:
        files: of the console, and of the measurement.
    """
    from micronpu.board import measurement
    from micronpu.board.probe import run_on_probe
    from micronpu.cli.printed import log_view

    if (reference is None) != (vectors is None):
        raise OptionError(
            "--gdb needs both --reference and --vectors, the program and the vectors of the firmware, or neither.",
            hint="--reference model.pte --vectors inputs.npz; or neither of them: the firmware itself compares",
        )
    wanted = _reference(reference, vectors) if reference is not None and vectors is not None else None
    done = run_on_probe(file, options, reference=wanted, console=None if json else print_bytes)
    log, measured_file = files
    if log is not None:
        write_file(log, done.output)
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
    if measured_file is not None:
        measurement.written(measured_file, done.output, read_file(file), done.board, is_emulated=done.is_emulated)


def _reference(file: Path, vectors: str) -> ExpectedOutputs:
    """The program that the firmware contains, and its vectors with the outputs of this machine."""
    from micronpu.board.check import reference
    from micronpu.board.nsys import read_program
    from micronpu.board.probe import ExpectedOutputs
    from micronpu.cli.files import load_arrays
    from micronpu.deploy.vectors import from_arrays
    from micronpu.program.pte import read_pte

    data = read_file(file)
    program = read_program(data, str(file))
    rows = from_arrays(load_arrays(vectors), program.inputs, program.outputs, reference(program), vectors)
    payloads = read_pte(data).payloads
    return ExpectedOutputs.of(re.sub(r"\W", "_", file.stem, flags=re.ASCII), payloads[0][1] if payloads else None, rows)


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
