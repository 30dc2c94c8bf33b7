"""Parallel compilations of one model for many targets, in processes."""

from __future__ import annotations

import math
import pickle
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from micronpu.base.errors import MicroNpuError
from micronpu.base.texts import plural
from micronpu.base.worker import Worker as Process
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
    team = [_Member(task, seconds) for _ in range(min(count, len(jobs)))]
    idle = SimpleQueue[_Member]()
    for member in team:
        idle.put(member)

    def run(job: Job) -> tuple[Job, Candidate]:
        member = idle.get()
        try:
            return job, member.run(job)
        finally:
            idle.put(member)

    with ThreadPoolExecutor(len(team)) as threads:
        try:
            for finished in as_completed([threads.submit(run, job) for job in jobs]):
                yield finished.result()
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            for member in team:
                member.close()


class _Member:
    """A process, started with its first job and again after a crash.

    `multiprocessing` is not used: it imports from the current folder, and starts another process.
    """

    def __init__(self, task: Task, seconds: float) -> None:
        self._task, self._seconds = pickle.dumps(task), seconds
        self._process: Process | None = None
        self._is_closed = False

    def run(self, job: Job) -> Candidate:
        """Return the row of a job; a failed one if the process ends, or is stopped as too late."""
        process = self._process
        try:
            if process is None:
                script = Path(__file__).with_name("compare_worker.py")
                process = self._process = Process(script, *filter(None, sys.path), environment={})
            if self._is_closed:  # by the other thread, in the meantime
                raise EOFError
            limit = None if math.isinf(self._seconds) else self._seconds
            (row,) = process.ask({"job": job}, [self._task], limit)[1]
            found: Candidate = pickle.loads(row)
            return found
        except TimeoutError:
            self._end()
            return failed(job, f"It was not compiled within {self._seconds:g} s. Try: --timeout {2 * self._seconds:g}")
        except (EOFError, OSError, ValueError) as error:
            how, words = (str(error), "") if process is None else process.how_it_ended()
            self._end()
            return failed(job, f"The process that compiled it {how}.{words}")

    def close(self) -> None:
        """Stop the process, even during a job."""
        self._is_closed = True
        self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.close()


def _what(name: str, measurements: str | None) -> str:
    """Return core, NPU, clocks, memory and boards of a target, from its chip file, and the number of assumed values."""
    from micronpu.chips import ACTIVATIONS, load_chip, with_clock
    from micronpu.chips.core import CORES
    from micronpu.targets.registry import find_target

    chip = find_target(name).chip
    if chip is None:
        known = f"; known of {with_clock(name)}" if name in CORES else ""
        return f"no chip: clocks and memories are not known{known}"
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
