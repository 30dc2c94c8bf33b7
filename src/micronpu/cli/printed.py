"""Output of `micronpu board log`."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from micronpu.base.errors import FileError
from micronpu.base.files import make_folder, write_file
from micronpu.board.logs import Measured, read_log
from micronpu.board.printed import Array, Printed, read_printed

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
        """Return the log as lines of text."""
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

    def to_json(self) -> dict[str, Any]:
        """Return the log for JSON."""
        return {
            "measured": [
                {"kind": r.kind, "name": r.name, "number": r.number, "ticks": r.ticks, "times": r.times}
                for r in self.measured
            ],
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
    """Read a log.

    Raises:
        FileError: it is empty or damaged.
    """
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
                files[f"{name}{suffix}.npz"] = _npz(arrays)
    if printed.etdump:
        files["run.etdump"] = printed.etdump
    if not files:
        raise FileError(
            "The log holds no bytes to write.",
            hint="firmware that is built with -DMICRONPU_PRINT_OUTPUTS=ON, -DMICRONPU_PRINT_VALUES=ON or "
            "-DMICRONPU_ETDUMP=ON",
        )
    return [Path(write_file(folder / file, content)) for file, content in files.items()]


def _npz(arrays: Mapping[str, Array]) -> bytes:
    memory = io.BytesIO()
    np.savez(memory, **arrays)
    return memory.getvalue()
