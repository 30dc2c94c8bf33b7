"""Malformed command lines: each ends with the documented exit code and a sentence.

    python -m tests.fuzz.malformed_commands           every one, in a minute

For each command there is one that works, and in it every argument and option in turn gets a value that does not fit.
Commands and options are those that `micronpu` has: what is new is tried as well.
"""

from __future__ import annotations

import inspect
import itertools
import os
import sys
import tempfile
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
from tests import board_logs
from tests.fuzz.wrong_values import X, program
from typer.testing import CliRunner

from micronpu.cli.main import app

MODEL = """
import torch
from torch import nn

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU()).eval(), (torch.zeros(1, 2, 6, 6),)

def calibration(): return [torch.randn(1, 2, 6, 6)]
"""

GOOD: dict[str, tuple[str, ...]] = {
    "compile": ("m.py:net", "-t", "imxrt700-neutron", "--no-verify"),
    "check": ("m.py:net", "-t", "imxrt700-neutron"),
    "evaluate": ("m.py:net", "net.pte", "--data", "x.npy"),
    "blame": ("m.py:net", "--data", "x.npy", "-t", "imxrt700-neutron"),
    "fix": ("m.py:net", "--data", "x.npy", "-t", "imxrt700-neutron"),
    "advise": ("m.py:net", "-t", "imxrt700-neutron"),
    "compare": ("m.py:net", "-t", "imxrt700-neutron", "--jobs", "1"),
    "diff": ("a.json", "b.json"),
    "reproduce": ("net.manifest.json", "m.py:net", "--no-cache"),
    "run": ("net.pte", "-i", "x.npy"),
    "inspect": ("net.pte",),
    "deploy": ("net.pte", "-o", "deployed"),
    "image": ("net.pte", "-o", "net.img", "--version", "1.0.0"),
    "disassemble": ("net.pte",),
    "targets": (),
    "passes": (),
    "doctor": (),
    "new": ("fresh",),
    "calibrate": ("u55.toml", "board.log", "--report", "u55.json", "--dry-run"),
}
"""A command line of each command that works; `disassemble` has nothing to show of a program without a stream, and
`image` takes none for a laptop."""

FILES = (
    "no/such/file", "a\0b", ".", "", "/dev/null", "x" * 5000, "text.txt", "text.pte", "text.npy", "cut.pte",
    "no.py:net", "m.py:nothing", "m.py", "\udce4", "text.pt2", "--", "m.py:net:net",
)  # fmt: skip
NAMES = ("", "no such", "a\0b", "x" * 5000, "a\nb", "-1", "imxrt700.toml", "text.txt", "ä ö")
NUMBERS = ("", "x", "nan", "-1", "1e999", "0x", "--")


@dataclass(frozen=True)
class Line:
    """One malformed command line; `{new}` in it is a name that is not taken."""

    words: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join(word if len(word) < 60 else f"{word[:10]}..." for word in self.words)

    def wrong(self) -> str:
        """What is wrong with what comes of it, or ""."""
        result = CliRunner().invoke(app, list(self.words))
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            return f"{type(result.exception).__name__}: {result.exception}"
        if result.exit_code == 0:
            return "is accepted"
        if result.exit_code == 2:
            return "" if "Error" in result.stderr and "Traceback" not in result.output else result.output[:300]
        if result.exit_code != 1:
            return f"ends with exit code {result.exit_code}: {result.output[:200]}"
        lines = [line for line in result.stderr.splitlines() if not line.startswith("In full: micronpu ")]
        if len(lines) != 1 or not lines[0].startswith("Error: ") or lines[0][-1] not in ".?":
            return f"no sentence: {result.stderr[:300]!r}"
        if "did not expect" in lines[0] or "Traceback" in result.output:
            return lines[0]
        return ""


def parameters(command: str) -> Iterator[tuple[str, str, type, bool]]:
    """Of each argument and option: name, flag or "", the type of its value, and whether there may be several."""
    function = next(c.callback for c in app.registered_commands if (c.name or c.callback.__name__) == command)
    function = inspect.unwrap(function)
    for name, hint in typing.get_type_hints(function, include_extras=True).items():
        if typing.get_origin(hint) is not typing.Annotated:
            continue
        kind, info = typing.get_args(hint)[:2]
        several = "list" in str(kind)
        (kind, *_) = [k for k in (str, bool, int, float, Path) if k.__name__ in str(kind).split("[")[-1]] or [str]
        flags = list(getattr(info, "param_decls", None) or ())
        is_argument = type(info).__name__ == "ArgumentInfo"
        long = [flag for flag in flags if flag.startswith("--")] or [f"--{name.replace('_', '-')}"]
        yield name, "" if is_argument else long[0].split("/")[0], kind, several


def commands() -> list[str]:
    """Their names."""
    return [c.name or c.callback.__name__ for c in app.registered_commands if c.callback is not None]


UNWRITABLE = ("no/such/file", "a\0b", ".", "", "x" * 5000, "\udce4/x", "text.txt/file")
_FOLDERS = ("run", "deploy")
"""Commands of which `--output` is a folder, where "." may well be one and what is missing is made."""


_FINE = {
    ("deploy", "section", "x" * 5000),
    ("deploy", "section", "imxrt700.toml"),
    ("deploy", "section", "text.txt"),
    ("targets", "names", "--"),
    ("targets", "names", ""),
    ("compile", "quantization", "/dev/null"),
    ("blame", "quantization", "/dev/null"),
    ("fix", "quantization", "/dev/null"),
    ("advise", "quantization", "/dev/null"),
    ("reproduce", "calibration", ""),
    ("reproduce", "target", ""),
}
"""What is unusual and does no harm; empty settings are none."""


def lines() -> Iterator[Line]:
    """Every malformed command line."""
    for command in commands():
        good = GOOD[command]
        yield Line((command, *good, "--no-such-option"))
        if command != "targets":  # which takes any number of words
            yield Line((command, *good, "one", "too many", "arguments"))
        if good:
            yield Line((command,))
        for name, flag, kind, several in parameters(command):
            if kind is bool:
                yield Line((command, *good, f"{flag}=x"))
                continue
            is_file = kind is Path or name in ("model", "calibration", "inputs", "vectors")
            values = NUMBERS if kind in (int, float) else FILES if is_file else NAMES
            if command == "compare" and (is_file or name == "folder"):
                continue  # it starts processes, and what is wrong there is a row of its table
            if name in ("output", "report_html", "report_json", "deploy_to", "profile", "etrecord", "trace"):
                is_folder = name == "deploy_to" or (name == "output" and command in _FOLDERS)
                values = UNWRITABLE[1:2] + UNWRITABLE[4:5] + UNWRITABLE[6:] if is_folder else UNWRITABLE
            for value in values:
                if (command, name, value) in _FINE:
                    continue
                if not flag:
                    rest = tuple(word for word in good[1:])
                    yield Line((command, value, *rest))
                elif flag in good or _short(flag) in good:
                    place = good.index(flag if flag in good else _short(flag))
                    yield Line((command, *good[: place + 1], value, *good[place + 2 :]))
                else:
                    yield Line((command, *good, flag, value))
            if flag:
                yield Line((command, *good, flag))
                if several and flag not in good:
                    yield Line((command, *good, *itertools.chain(*[(flag, v) for v in FILES[:3]])))
    yield Line(("no-such-command",))
    yield Line(("--no-such-option",))
    yield Line(("compile", "--help=x"))


def _short(flag: str) -> str:
    return flag[1:3]


def prepare(folder: Path) -> None:
    """Makes what the command lines read."""
    (folder / "m.py").write_text(MODEL)
    for name in ("text.txt", "text.pte", "text.npy", "text.pt2"):
        (folder / name).write_text("text")
    program().save(folder / "net.pte", manifest=True)
    (folder / "cut.pte").write_bytes(program().buffer[:-200])
    np.save(folder / "x.npy", X.numpy())
    for name in ("a.json", "b.json"):
        (folder / name).write_text(program().report.to_json())
    chip = resources.files("micronpu.chips").joinpath("ra8p1.toml").read_text(encoding="utf-8")
    (folder / "u55.toml").write_text(chip.replace('name = "ra8p1"', 'name = "mychip"'))
    (folder / "board.log").write_text(board_logs.own())
    (folder / "u55.json").write_text(board_logs.report().to_json())


def main() -> int:
    """Prints what is wrong, and how many there were."""
    count = failures = 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        prepare(Path(folder))
        for line in lines():
            count += 1
            if found := line.wrong():
                failures += 1
                print(f"{line!s}: {found}", flush=True)
        os.chdir("/")
    print(f"{count} malformed command lines, {failures} of them without a sentence")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
