"""Boards behind a GDB server (`micronpu board run --gdb`, `flash`, `list --probes`), and console logs."""

from __future__ import annotations

import contextlib
import io
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import typer

from micronpu.base.arrays import Array
from micronpu.base.errors import ErrorsAs, FileError, MicroNpuError, OptionError
from micronpu.base.files import make_folder, read_file, write_file
from micronpu.base.parsing import JsonObject
from micronpu.board.logs import Measured, read_log, write_measurement
from micronpu.board.printed import Printed, read_printed
from micronpu.cli import console

if TYPE_CHECKING:
    from collections.abc import Callable

    from micronpu.board.probe import ExpectedOutputs, ProbeOptions


_UNITS = {"npu": "cycles of the NPU", "call": "cycles", "run": "cycles", "operation": "cycles"}


@dataclass(frozen=True)
class LogView:
    """A log.

    Attributes:
        printed: the binary data in it.
        measured: median times.
    """

    printed: Printed
    measured: tuple[Measured, ...]

    def lines(self) -> list[str]:
        found = []
        for row in self.measured:
            what = "run" if row.number < 0 else f"instruction {row.number}"
            count = f"{row.times} time" + ("s" if row.times > 1 else "")
            found.append(f"{row.name}, {what}: {row.ticks:,.0f} {_UNITS[row.kind]}, measured {count}")
        for name in self.printed.names():
            for key, array in self._arrays(name).items():
                found.append(f"{name}, {key}: {array.dtype}, {' x '.join(map(str, array.shape))}")
        if self.printed.etdump:
            found.append(f"ETDump: {len(self.printed.etdump):,} bytes")
        return found

    def to_json(self) -> JsonObject:
        return {
            "measured": [asdict(row) for row in self.measured],
            "arrays": {
                name: {key: {"dtype": str(a.dtype), "shape": list(a.shape)} for key, a in self._arrays(name).items()}
                for name in self.printed.names()
            },
            "etdump_bytes": len(self.printed.etdump),
        }

    def _arrays(self, name: str) -> dict[str, Array]:
        values = {f"value {key}": array for key, array in self.printed.values_of(name).items()}
        return {**self.printed.outputs_of(name), **values}


def log_view(data: bytes, name: str) -> LogView:
    printed = read_printed(data, name)
    empty = not printed.etdump and not printed.names()
    try:
        measured = read_log(data, name).rows
    except FileError:
        if empty or b"micronpu-run " in data or b"micronpu-cycles " in data:
            raise
        measured = ()
    return LogView(printed, measured)


def written(printed: Printed, folder: Path) -> list[Path]:
    """Write the binary data of a log into a folder; return the files."""
    make_folder(folder)
    files: dict[str, bytes] = {}
    for name in printed.names():
        for suffix, arrays in (("", printed.outputs_of(name)), ("_values", printed.values_of(name))):
            if arrays:
                memory = io.BytesIO()
                np.savez(memory, **arrays)
                files[f"{name}{suffix}.npz"] = memory.getvalue()
    if printed.etdump:
        files["run.etdump"] = printed.etdump
    if not files:
        raise FileError(
            "The log holds no bytes to write.",
            hint="firmware that is built with -DMICRONPU_PRINT_OUTPUTS=ON, -DMICRONPU_PRINT_VALUES=ON or "
            "-DMICRONPU_ETDUMP=ON",
        )
    return [Path(write_file(folder / file, content)) for file, content in files.items()]


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
    """Run a firmware on a board, show and write what it has printed and measured, and exit with its status."""
    from micronpu.board.probe import run_on_probe

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
            console.say(line, "red" if done.exit_code else "green")
    if done.exit_code:
        raise typer.Exit(done.exit_code)
    if measured_file is not None:
        write_measurement(measured_file, done.output, read_file(file), done.board, is_emulated=done.is_emulated)


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
    """The debug probes that pyOCD sees: their name and identity."""
    try:
        from pyocd.core.helpers import ConnectHelper
    except ImportError as error:
        raise OptionError("Probes are listed by pyOCD, which is not installed.", hint="pip install pyocd") from error
    with ErrorsAs(lambda error: MicroNpuError(f"pyOCD cannot list the probes: {error}.", hint="pyocd list")):
        found = ConnectHelper.get_all_connected_probes(blocking=False)
    return [{"name": probe.description, "id": probe.unique_id} for probe in found]
