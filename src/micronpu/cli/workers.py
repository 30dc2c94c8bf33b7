"""Compilations of one model for many targets, side by side: in processes, or on a Ray cluster."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

from micronpu.base.errors import MicroNpuError, RuntimeUnavailableError
from micronpu.report.candidates import Candidate


@dataclass(frozen=True)
class Task:
    """What every compilation has in common, as the command line names it.

    Attributes:
        model: path/to/file.py:function or file.pt2.
        calibration: see `micronpu compile`, or None.
        data, labels, metric: of `micronpu eval`; None for no score.
    """

    model: str
    calibration: str | None = None
    data: str | None = None
    labels: str | None = None
    metric: str | None = None


Job = tuple[str, str]
"""A target, and the type of its activations."""


class Worker:
    """Loads the model once and compiles it for one target after the other."""

    def __init__(self, task: Task) -> None:
        import torch

        from micronpu.cli.evaluate import load_labels, load_metric
        from micronpu.cli.files import load_calibration, load_model

        torch.set_num_threads(1)  # the processes fill the machine
        self._model = load_model(task.model)
        calibration = load_calibration(task.calibration, self._model)
        self._calibration: list[Any] = list(calibration)
        self._data = list(load_calibration(task.data, self._model)) if task.data is not None else None
        self._labels = load_labels(task.labels) if task.labels is not None else None
        self._metric = load_metric(task.metric) if task.metric is not None else None

    def run(self, job: Job) -> Candidate:
        """One compilation; what goes wrong is in the row."""
        import micronpu
        from micronpu.quantize.config import check_activations

        target, activations = job
        try:
            program = micronpu.compile(
                self._model.module,
                self._model.examples,
                target,
                calibration=self._calibration,
                activations=check_activations(activations, "--activations"),
            )
            score = None
            if self._data is not None:
                found = micronpu.evaluate(self._model.module, program, self._data, self._labels, metric=self._metric)
                score = found.program.score.value if found.program.score is not None else None
            return Candidate.of(target, activations, program.report, score)
        except MicroNpuError as error:
            return _failed(job, str(error))


def in_processes(task: Task, jobs: Sequence[Job], count: int) -> Iterator[tuple[Job, Candidate]]:
    """The rows, each when it is there."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, mp_context=context, initializer=_start, initargs=(task,)) as pool:
        futures = {pool.submit(_run, job): job for job in jobs}
        try:
            for future in as_completed(futures):
                job = futures[future]
                try:
                    yield job, future.result()
                except BrokenProcessPool:
                    yield job, _failed(job, "The process that compiled it has ended.")
        except (KeyboardInterrupt, GeneratorExit):
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def on_ray(task: Task, jobs: Sequence[Job], count: int) -> Iterator[tuple[Job, Candidate]]:
    """The same on a Ray cluster: the one that the environment names, else this machine.

    Raises:
        RuntimeUnavailableError: Ray is not installed.
    """
    try:
        import ray
    except ImportError as error:
        hint = 'pip install "micronpu[ray]"'
        raise RuntimeUnavailableError(f"Ray cannot be imported: {error}.", hint=hint) from error
    ray.init(ignore_reinit_error=True, log_to_driver=False, include_dashboard=False)
    remote = ray.remote(num_cpus=1)(Worker)
    workers = [remote.remote(task) for _ in range(min(count, len(jobs)))]
    waiting = list(jobs)
    running: dict[Any, tuple[Job, Any]] = {}
    try:
        while waiting or running:
            while workers and waiting:
                worker, job = workers.pop(), waiting.pop(0)
                running[worker.run.remote(job)] = (job, worker)
            (done, *_), _ = ray.wait(list(running), num_returns=1)
            job, worker = running.pop(done)
            try:
                yield job, ray.get(done)
                workers.append(worker)
            except ray.exceptions.RayActorError:
                yield job, _failed(job, "The process that compiled it has ended.")
                workers.append(remote.remote(task))
    finally:
        ray.shutdown()


_worker: Worker | MicroNpuError | None = None


def _start(task: Task) -> None:
    global _worker
    try:
        _worker = Worker(task)
    except MicroNpuError as error:  # an initializer that fails would only say that the pool is broken
        _worker = error


def _run(job: Job) -> Candidate:
    assert _worker is not None
    return _failed(job, str(_worker)) if isinstance(_worker, MicroNpuError) else _worker.run(job)


def _failed(job: Job, why: str) -> Candidate:
    return Candidate(*job, blocks=why, failed=True)
