"""Parallel compilations of one model for many targets, in processes."""

from __future__ import annotations

import contextlib
import math
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path

from micronpu.base.errors import MicroNpuError
from micronpu.base.texts import plural
from micronpu.cli.sources import NO_PICTURES, Pictures
from micronpu.report.alternatives import Candidate


@dataclass(frozen=True)
class Task:
    """The common part of all compilations, as given on the command line.

    Attributes:
        model: path/to/file.py:function or file.pt2.
        calibration: see `micronpu compile`, or None.
        pictures: the calibration data in its place.
        data, labels, metric: of `micronpu evaluate`; None for no score.
        libraries: Python files that register custom operators.
        measurements: targets, each with its chip file with measurements.
    """

    model: str
    calibration: str | None = None
    data: str | None = None
    labels: str | None = None
    metric: str | None = None
    libraries: tuple[str, ...] = ()
    measurements: tuple[tuple[str, str], ...] = ()
    pictures: Pictures = NO_PICTURES


Job = tuple[str, str]
"""A target, and the dtype of its activations."""


class Worker:
    """Loads the model once and compiles it for one target after the other."""

    def __init__(self, task: Task) -> None:
        import torch

        from micronpu.cli.files import load_calibration, load_model, register
        from micronpu.cli.sources import load_data, load_labels, load_metric

        torch.set_num_threads(1)  # one process per core
        register(task.libraries)
        self._model = load_model(task.model)
        self._calibration = load_data(task.calibration, task.pictures, self._model).keep()
        self._data = list(load_calibration(task.data, self._model)) if task.data is not None else None
        self._labels, self._metric = load_labels(task.labels), load_metric(task.metric)
        self._measurements = dict(task.measurements)

    def run(self, job: Job) -> Candidate:
        """Return the row of one compilation, with the reason if it failed."""
        import micronpu
        from micronpu.quantize.config import check_activations
        from micronpu.targets.registry import find_target, options_for

        target, activations = job
        chosen = find_target(target)
        measured = self._measurements.get(chosen.name)
        try:
            program = micronpu.compile(
                self._model.module,
                self._model.examples,
                target,
                calibration=self._calibration,
                quantization=check_activations(activations, "--quantization"),
                options=options_for(chosen, given={"measurements": measured}) if measured is not None else None,
            )
            score = None
            if self._data is not None:
                found = micronpu.evaluate(self._model.module, self._data, program, self._labels, metric=self._metric)
                score = found.program.score.value if found.program.score is not None else None
            return Candidate.of(target, activations, program.report, score, _what(target, measured))
        except MicroNpuError as error:
            return failed(job, str(error))


def in_processes(
    task: Task, jobs: Sequence[Job], count: int, seconds: float = math.inf
) -> Iterator[tuple[Job, Candidate]]:
    """Yield rows as they are finished; the processes end with this one, also after an error.

    Args:
        seconds: wall-clock limit of a compilation; the row of one that exceeds it has the reason.
    """
    waiting = list(reversed(jobs))
    team = [_Process(task) for _ in range(min(count, len(jobs)))]
    try:
        for member in team:
            member.begin(waiting.pop())
        while busy := {member.connection: member for member in team if member.job is not None}:
            left = min(member.begun for member in busy.values()) + seconds - time.monotonic()
            ready = wait(list(busy), None if math.isinf(seconds) else max(left, 0.0))
            late = [] if ready else [min(busy, key=lambda connection: busy[connection].begun)]
            for connection in ready or late:
                member = busy[connection]  # type: ignore[index]
                yield member.end(None if ready else seconds)
                if not waiting:
                    continue
                if not member.is_alive():
                    member.close()
                    team[team.index(member)] = member = _Process(task)
                member.begin(waiting.pop())
    finally:
        for member in team:
            member.close()


class _Process:
    """One process, and its current job.

    `multiprocessing` is not used: it imports from the current folder, and starts another process.
    """

    def __init__(self, task: Task) -> None:
        self.job: Job | None = None
        self.begun = 0.0
        script = Path(__file__).with_name("compare_worker.py")
        ours, theirs = socket.socketpair()
        self.connection = Connection(ours.detach())
        with theirs:
            command = [sys.executable or "python", "-I", str(script), *filter(None, sys.path)]
            self._process = subprocess.Popen(command, stdin=theirs.fileno())
        self._send(task)

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def begin(self, job: Job) -> None:
        self.job, self.begun = job, time.monotonic()
        self._send(job)

    def end(self, late: float | None = None) -> tuple[Job, Candidate]:
        """Return the row that the process has sent; a failed one if it has ended, or is stopped as too late."""
        job, self.job = self.job, None
        assert job is not None
        why = "The process that compiled it has ended."
        if late is not None:
            why = f"It was not compiled within {late:g} s. Try: --timeout {2 * late:g}"
        with contextlib.suppress(EOFError, OSError):
            if late is None:
                return job, self.connection.recv()
        self.close()
        return job, failed(job, why)

    def close(self) -> None:
        """Stop the process, even during a job."""
        self.connection.close()
        try:
            self._process.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _send(self, what: object) -> None:
        with contextlib.suppress(OSError):  # if the process has ended, `end` reports it
            self.connection.send(what)


_PATIENCE_SECONDS = 1.0
"""Seconds for a process to end itself and its children."""


def _what(name: str, measurements: str | None) -> str:
    """Return core, NPU, clocks, memory and boards of a target, from its chip file, and the number of assumed values."""
    from micronpu.chips import ACTIVATIONS, load_chip
    from micronpu.targets.registry import find_target

    chip = find_target(name).chip
    if chip is None:
        return "no chip: clocks and memories are not known"
    memory = chip.memory_for(ACTIVATIONS)
    parts = [_clocked(chip.core.title(), chip.core_clock_mhz)]
    if chip.npu is not None:
        parts.append(_clocked(chip.npu.variant, chip.npu.clock_mhz))
    parts += [str(memory)] if memory is not None else []
    assumed = len(chip.npu.assumed) if chip.npu is not None else 0
    found = [", ".join(parts), f"{plural(assumed, 'figure')} assumed" if assumed else "all published"]
    found += [f"on {', '.join(chip.boards)}"] if chip.boards else []
    found += filter(None, [(load_chip(measurements) if measurements else chip).measured])
    return "; ".join(found)


def _clocked(name: str, clock_mhz: float | None) -> str:
    return name if clock_mhz is None else f"{name} at {clock_mhz:g} MHz"


def failed(job: Job, why: str) -> Candidate:
    return Candidate(*job, blocks=why, failed=True)
