"""Runs a target on mutated files in forked processes: a crash or a hang costs one file, and is counted.

A target reads one file.  It returns a word for what came of it, such as "the same result", or raises a `MicroNpuError`,
which is the way to refuse a file.  Any other exception is a defect, and so is a report of a sanitizer that names our
library.  A process that dies elsewhere, in ExecuTorch or in LiteRT, is counted apart: users run such files in a process
of its own, as happens here.
"""

from __future__ import annotations

import contextlib
import faulthandler
import mmap
import os
import random
import resource
import select
import signal
import struct
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from micronpu.base.errors import MicroNpuError

HANG_SECONDS = 10.0
"""Of the processor, for one file."""
SILENT_SECONDS = 120.0
"""On a machine that others use as well, after which a process that uses no processor hangs, too."""
_BATCH = 200  # files per process
_LIBRARIES = ("libmicronpu", "libethosu")
Mutate = Callable[[bytes, random.Random, Sequence[bytes]], bytes]


@dataclass(frozen=True)
class Target:
    """Something that reads files.

    Attributes:
        name: in the counts.
        seeds: good files.
        read: reads one, see above.
        mutate: changes a seed.
        share: of the files, relative to other targets.
    """

    name: str
    seeds: Sequence[bytes]
    read: Callable[[bytes], str]
    mutate: Mutate
    share: float = 1.0


@dataclass
class Counts:
    """What came of the files of a target.

    Attributes:
        outcomes: by word; "refused" is a `MicroNpuError`.
        defects: sentences, each with the number of the file that showed it.
        crashes: numbers of the files that ended the process elsewhere.
        peak_megabytes: the most that a process had.
    """

    files: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    defects: list[str] = field(default_factory=list)
    crashes: list[int] = field(default_factory=list)
    seconds: float = 0.0
    peak_megabytes: int = 0

    def to_dict(self) -> dict[str, object]:
        return {
            "files": self.files,
            "outcomes": dict(sorted(self.outcomes.items())),
            "defects": self.defects[:50],
            "number_of_defects": len(self.defects),
            "crashes": self.crashes[:50],
            "seconds": round(self.seconds, 1),
            "peak_megabytes": self.peak_megabytes,
        }


def file_of(target: Target, seed: int, number: int) -> bytes:
    """The mutated file of a number: always the same."""
    random_ = random.Random(f"{target.name}/{seed}/{number}")
    return target.mutate(random_.choice(target.seeds), random_, target.seeds)


def fuzz(target: Target, seed: int, files: int, logs: Path, seconds: float = 1e9) -> Counts:
    """Reads mutated files.

    Args:
        seed: with the number of a file, what decides its mutation.
        files: how many at most.
        logs: a folder for what sanitizers say (their option `log_path`) and for files that showed a defect.
        seconds: after which no further process is started.
    """
    counts = Counts()
    started = time.monotonic()
    number = 0
    while number < files and time.monotonic() - started < seconds:
        number = _batch(target, seed, number, min(number + _BATCH, files), logs, counts)
    counts.files = number
    counts.seconds = time.monotonic() - started
    return counts


def _batch(target: Target, seed: int, first: int, last: int, logs: Path, counts: Counts) -> int:
    """Reads files from `first` on in one process; the number of the file to go on with."""
    # The number of the file that the process is at, which survives it.
    at = mmap.mmap(-1, 8)
    receiving, sending = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(receiving)
        _work(target, seed, first, last, at, sending)
    os.close(sending)
    reported = _listen(receiving, pid)
    os.close(receiving)
    _, status, usage = os.wait4(pid, 0)
    hung = reported.hung or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF)
    counts.peak_megabytes = max(counts.peak_megabytes, usage.ru_maxrss // 1024)
    for line in reported.lines:
        kind, _, what = line.partition("\t")
        if kind == "defect":
            counts.outcomes["defect"] += 1
            counts.defects.append(what)
        else:
            counts.outcomes[kind] += 1
    (current,) = struct.unpack("<q", at[:8])
    if current >= last:
        return last
    report = _report(logs, pid)
    if hung:
        counts.outcomes["hang"] += 1
        counts.defects.append(f"file {current}: no end within {HANG_SECONDS:.0f} s")
    elif any(name in report for name in _LIBRARIES) or "runtime error:" in report:
        counts.outcomes["crash in micronpu"] += 1
        counts.defects.append(f"file {current}: {_summary(report)}")
    else:
        counts.outcomes["crash elsewhere"] += 1
        counts.crashes.append(current)
    if hung or report:
        (logs / f"{target.name}-{seed}-{current}").write_bytes(file_of(target, seed, current))
    return int(current) + 1


@dataclass
class _Reported:
    lines: list[str]
    hung: bool


def _listen(receiving: int, pid: int) -> _Reported:
    """What the process tells until it ends, or hangs and is ended."""
    buffer = bytearray()
    hung = False
    while True:
        ready, _, _ = select.select([receiving], [], [], SILENT_SECONDS)
        if not ready:
            hung = True
            os.kill(pid, signal.SIGKILL)
            break
        part = os.read(receiving, 1 << 16)
        if not part:
            break
        buffer += part
    return _Reported([line for line in buffer.decode("utf-8", "replace").split("\n") if line], hung)


def _work(target: Target, seed: int, first: int, last: int, at: mmap.mmap, sending: int) -> None:
    """The process: never returns."""
    try:
        faulthandler.disable()  # pytest has it on, and it would print for every crash
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.environ["PATH"] = ""  # as the process of an isolated program has it
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        for number in range(first, last):
            at[:8] = struct.pack("<q", number)
            signal.setitimer(signal.ITIMER_PROF, HANG_SECONDS)  # its signal ends the process
            line = _outcome(target, file_of(target, seed, number), number)
            os.write(sending, line.replace("\n", " ").encode("utf-8", "replace") + b"\n")
        at[:8] = struct.pack("<q", last)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.write(sending, f"defect\tthe harness failed: {error!r}\n".encode())
    finally:
        os._exit(0)


def _outcome(target: Target, data: bytes, number: int) -> str:
    try:
        return target.read(data)
    except MicroNpuError as error:
        return "refused" if str(error).strip() else f"defect\tfile {number}: a refusal without a sentence"
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        where = " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(frames[-3:]))
        return f"defect\tfile {number}: {type(error).__name__}: {str(error)[:120]} at {where}"


def _report(logs: Path, pid: int) -> str:
    """What a sanitizer said of a process; its first stack only, since a second is where memory came from."""
    with contextlib.suppress(OSError):
        text = (logs / f"sanitizer.{pid}").read_text(errors="replace")
        return text.split("\n\n")[0]
    return ""


def _summary(report: str) -> str:
    lines = [line.strip() for line in report.splitlines() if "ERROR:" in line or "runtime error:" in line]
    frames = [line.strip() for line in report.splitlines() if line.strip().startswith("#")]
    return "; ".join([*lines[:1], *frames[:3]])[:400]
