"""`measurement.toml`: what a run on a board has measured, of which program, and where."""

from __future__ import annotations

import math
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from micronpu.base.errors import FileError
from micronpu.base.files import write_file
from micronpu.base.installed import VERSION as OWN_VERSION
from micronpu.base.parsing import parse_toml, toml_text
from micronpu.board.logs import BoardLog, Measured, read_log
from micronpu.report.codec import DecodeError, decode, encode

FORMAT, VERSION = "micronpu measurement", 1
_HEAD = ("format", "version")
_HEAD_BYTES = 4096
_FORMAT = re.compile(rb'^format\s*=\s*"micronpu measurement"', re.MULTILINE)
_COMPILER = re.compile(rb"(GCC: \([^\0\n]{1,80}|[\w ]{0,20}clang version [^\0\n]{1,80})\0")
"""A compiler's name in the section .comment of an image."""
_HINT = "a file of `micronpu board run --measurement`"


def written(path: Path, output: bytes, image: bytes, board: str, *, is_emulated: bool) -> None:
    """Write what a firmware has printed as a measurement.

    Args:
        output: the whole console.
        image: the firmware's ELF file.
        board: where it ran.

    Raises:
        FileError: it has printed no cycles, or the file cannot be written.
    """
    try:
        log = read_log(output, path.name)
        rows = tuple(row for row in log.rows if row.ticks)  # an emulated core may have no counter
    except FileError as error:
        raise FileError(f"There is nothing to write to {path}: {error.what}", hint=_BUILD) from error
    if not rows:
        raise FileError(f"There is nothing to write to {path}: all counters of the firmware are 0.", hint=_BUILD)
    compiler = _COMPILER.search(image)
    tools = {"micronpu": OWN_VERSION} | ({"compiler": compiler[1].decode(errors="replace")} if compiler else {})
    log = replace(log, rows=rows, board=board, is_emulated=is_emulated, tools=tools)
    write_file(path, _text(log).encode())


_BUILD = "a firmware that is built with -DMICRONPU_RUNS=10 or -DMICRONPU_PROFILE=ON"


def _text(log: BoardLog) -> str:
    values = {"format": FORMAT, "version": VERSION, **encode(log)}
    del values["name"]
    rows, tables = values.pop("rows"), {k: v for k, v in values.items() if isinstance(v, dict)}
    lines = ["# Made by `micronpu board run --measurement`, for `micronpu calibrate`."]
    lines += _pairs({k: v for k, v in values.items() if k not in tables})
    for name, table in tables.items():
        lines += ["", f"[{name}]", *_pairs(table)] if table else []
    for row in rows:
        lines += ["", "[[rows]]", *_pairs(row)]
    return "\n".join(lines) + "\n"


def _pairs(table: dict[str, Any]) -> list[str]:
    return [f"{key} = {toml_text(value)}" for key, value in table.items() if value is not None]


def read(data: bytes, name: str) -> BoardLog:
    """Read a measurement, or a log in one of the forms of `read_log`.

    Args:
        name: name in messages.

    Raises:
        FileError: it is neither, has unknown keys, or numbers that no counter has.
    """
    if _FORMAT.search(data[:_HEAD_BYTES]) is None:
        return read_log(data, name)
    try:
        values = parse_toml(data.decode())
        if values.get("version") != VERSION:
            raise DecodeError(f"its version is {values.get('version')!r}, and this micronpu reads {VERSION}")
        _check_keys(values, {*_HEAD, *(f.name for f in fields(BoardLog))} - {"name"}, "")
        log = decode(BoardLog, {**values, "name": name})
        for number, (row, given) in enumerate(zip(log.rows, values["rows"], strict=True)):
            _check_keys(given, {f.name for f in fields(Measured)}, f"rows[{number}].")
            _check_number(row.ticks, f"rows[{number}].ticks")
        for clock in ("clock_mhz", "npu_clock_mhz"):
            if (mhz := getattr(log, clock)) is not None:
                _check_number(mhz, clock)
        if not log.rows:
            raise DecodeError("it has no `rows`")
        if negative := [counter for counter, count in log.beats.items() if count < 0]:
            raise DecodeError(f"`beats.{negative[0]}` is negative")
    except ValueError as error:
        raise FileError(f"{name} is no measurement: {error}.", hint=_HINT) from error
    return log


def _check_keys(table: dict[str, Any], known: set[str], where: str) -> None:
    for key in table:
        if key not in known:
            raise DecodeError(f"it has the unknown key `{where}{key}`; known are {', '.join(sorted(known))}")


def _check_number(value: float, where: str) -> None:
    if not 0 < value < math.inf:
        raise DecodeError(f"`{where}` is {value:g}, and must be a number above 0")
