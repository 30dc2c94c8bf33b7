"""A command as a process that gets a signal at a moment that does not depend on time, and what is left of it."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
MARK = "MICRONPU_TEST_MARK"
_PATIENCE_SECONDS = 60.0
"""For a process to be gone: a busy machine is no defect."""

MODEL = """
import torch
from torch import nn

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)).eval(), (torch.randn(1, 3, 12, 12),)

def calibration():
    return [(torch.randn(1, 3, 12, 12),) for _ in range(4)]
"""

DRIVER = """
import atexit, contextlib, json, os, signal, sys
for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(each, signal.SIG_DFL)  # whoever started us may ignore it
told, wanted, number = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
sys.argv = ["micronpu", *sys.argv[4:]]
kinds = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "subprocess.Popen", "open"}
events = []

def happens(name):
    events.append(name)
    if len(events) - 1 == wanted or name == wanted and events.count(name) == 1:
        os.kill(os.getpid(), number) if number else print("now", flush=True)

def hook(name, args):
    if name not in kinds:
        return
    if name != "open":
        happens(name)
    elif isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR) and args[0] != os.devnull:
        happens("open for writing")

from micronpu.cli import console

@contextlib.contextmanager
def progress():
    yield lambda name, part: happens(f"{name} {part:.2f}")

console.progress = progress
from micronpu.cli.__main__ import main

def tell():
    kinds.clear()
    with os.fdopen(os.open(told, os.O_WRONLY | os.O_CREAT), "w") as file:
        json.dump(events, file)

atexit.register(tell)
sys.addaudithook(hook)
import micronpu.base.leaving
leave = micronpu.base.leaving.leave_on_signals

def leave_on_signals():
    leave()
    happens("begin")  # from here on a signal has its exit code

import micronpu.cli.__main__ as command
command.leave_on_signals = leave_on_signals
main()
"""
"""Writes the events of a command to a file; at the one that is wanted it sends itself a signal, or says "now"."""


@dataclass(frozen=True)
class Left:
    """What a command has left.

    Attributes:
        code: its exit code.
        files: in its folder, by path; without those that were there before.
        temporary: files and folders where temporary ones go, but for torch's cache, which stays by intent.
        children: numbers of processes that are still there after all patience.
        seconds: from the signal, or the end, until it and its children were gone.
        events: what it did, in order, where no signal ended it.
        working: processor seconds that it and its children took.
        errors: what it said.
    """

    code: int
    files: dict[str, bytes]
    temporary: list[str]
    children: list[int]
    seconds: float
    events: list[str]
    errors: str
    working: float

    def wrong(self, number: int, whole: dict[str, bytes]) -> str:
        """What is wrong with it after a signal, or "".

        Args:
            number: of the signal.
            whole: files of the command when nothing disturbs it.
        """
        if self.code != 128 + number:
            return f"exit code {self.code}: {self.errors[-300:]}"
        if self.errors:
            return f"it says {self.errors[-300:]}"
        for name, data in self.files.items():
            if whole.get(name) != data:
                return f"{name} is {'half written' if name in whole else 'left'}"
        return f"left: {self.temporary}, processes {self.children}" if self.temporary or self.children else ""


class Place:
    """A folder with a model in which commands run, one after the other, each with an empty folder for temporary files.

    Args:
        folder: a new one.
        files: more that commands read, by name.
    """

    def __init__(self, folder: Path, files: Mapping[str, bytes] | None = None) -> None:
        self._folder, self._temporary = folder / "work", folder / "temporary"
        self._reported = folder / "events.json"
        for made in (self._folder, self._temporary):
            made.mkdir(parents=True)
        for name, data in {"net.py": MODEL.encode(), **(files or {})}.items():
            (self._folder / name).write_bytes(data)

    @contextmanager
    def started(self, words: Sequence[str], wanted: int | str = -1, number: int = 0, **more: Any) -> Iterator[Command]:
        """A command under way; see `ended`."""
        mark = uuid.uuid4().hex
        before = _files(self._folder)
        environment = {**os.environ, MARK: mark, "TMPDIR": str(self._temporary), "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        command = [sys.executable, "-c", DRIVER, str(self._reported), json.dumps(wanted), str(number), *words]
        process = subprocess.Popen(
            command,
            cwd=self._folder,
            env=environment,
            **{"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, **more},
        )
        try:
            yield Command(process, mark, lambda: _files(self._folder, before), self._temporary, self._reported)
        finally:
            for pid in (process.pid, *marked(mark)):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
            self._reported.unlink(missing_ok=True)
            for path in (*self._folder.iterdir(), *self._temporary.iterdir()):
                if path.is_dir():
                    shutil.rmtree(path)
                elif path.name not in before:
                    path.unlink()

    def ended(self, words: Sequence[str], wanted: int | str = -1, number: int = 0) -> Left:
        """What a command leaves that gets a signal at an event, by its number or the first of a name; 0 for none."""
        with self.started(words, wanted, number) as command:
            return command.left()


@dataclass(frozen=True)
class Command:
    """A command under way."""

    process: subprocess.Popen[bytes]
    mark: str
    files: Callable[[], dict[str, bytes]]
    temporary: Path
    reported: Path

    def has_children(self) -> bool:
        """Whether a process of its own is there, as soon as one is."""
        start = time.monotonic()
        while len(marked(self.mark)) < 2 and self.process.poll() is None:
            if time.monotonic() > start + _PATIENCE_SECONDS:
                return False
            time.sleep(0.01)
        return self.process.poll() is None

    def working(self) -> float:
        """Processor seconds that it and its children have taken, which a busy machine does not change."""
        return sum(map(_processor_seconds, marked(self.mark)))

    def left(self) -> Left:
        """What it leaves, once it has ended."""
        before = _reaped()
        errors = self.process.communicate()[1] or b""
        working = _reaped() - before
        start = time.monotonic()
        while (children := marked(self.mark)) and time.monotonic() < start + _PATIENCE_SECONDS:
            time.sleep(0.02)
        events = json.loads(self.reported.read_bytes()) if self.reported.exists() else []
        left = sorted(path.name for path in self.temporary.iterdir() if not path.name.startswith("torchinductor_"))
        seconds = time.monotonic() - start
        return Left(self.process.returncode, self.files(), left, children, seconds, events, errors.decode(), working)


def marked(mark: str) -> list[int]:
    """Processes that a command has started, and theirs."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark.encode() in (path / "environ").read_bytes() and (path / "stat").read_text().split()[2] != "Z":
                found.append(int(path.name))
    return found


def _processor_seconds(pid: int) -> float:
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")  # of it, and of its children that have ended
    return 0.0


def _reaped() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _files(folder: Path, without: Mapping[str, bytes] | None = None) -> dict[str, bytes]:
    found = {str(p.relative_to(folder)): p for p in sorted(folder.rglob("*")) if "__pycache__" not in p.parts}
    return {name: p.read_bytes() for name, p in found.items() if p.is_file() and name not in (without or {})}
