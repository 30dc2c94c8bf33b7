"""Steps of a compilation: titles for progress displays, and wall time by step and part.

Time is measured only if asked for; a part then costs two clock readings.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

STEPS = {
    "load": "Loading the model",
    "export": "Exporting",
    "sparsify": "Choosing weights and training without labels",
    "quantize": "Calibrating and quantizing",
    "choose": "Choosing the precision",
    "partition": "Deciding what runs where",
    "compile": "Compiling for the NPU",
    "lower": "Lowering the host's part",
    "run": "Running",
    "blame": "Comparing layer by layer",
    "fix": "Trying fixes",
    "advise": "Compiling with changes",
    "float": "Running the float model",
    "program": "Running the program",
    "compare": "Compiling for the targets",
    "read": "Reading the program",
    "disassemble": "Running the stream for what it reads and writes",
    "deploy": "Writing what the firmware needs",
    "build": "Building the firmware",
}
"""Steps passed to progress callbacks, and their titles for users."""


def notebook_callback() -> Callable[[str, float], None] | None:
    """Return a progress callback that shows one line under the notebook cell until the end; None outside of
    notebooks."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or not hasattr(shell, "kernel"):  # a terminal's shell has none
        return None
    width = max(map(len, STEPS.values())) + len(" 100 %")

    def notify(name: str, part: float) -> None:
        text = f"{STEPS.get(name, name)} {part:.0%}" if part < 1 else ""
        sys.stdout.write(f"\r{text:{width}}\r{text}")
        sys.stdout.flush()

    return notify


@dataclass(frozen=True)
class TimedPart:
    """Time spent in one part of a step of the compilation; "" for the step as a whole."""

    step: str
    name: str
    calls: int
    seconds: float


class Times:
    """Wall time by step and part; `total` counts from construction."""

    def __init__(self) -> None:
        self._begun = time.perf_counter()
        self._found: dict[tuple[str, str], tuple[int, float]] = {}
        self.step = ""

    def add(self, step: str, name: str, seconds: float) -> None:
        calls, before = self._found.get((step, name), (0, 0.0))
        self._found[step, name] = (calls + 1, before + seconds)

    @property
    def total(self) -> float:
        """Seconds since construction."""
        return time.perf_counter() - self._begun

    def parts(self) -> list[TimedPart]:
        """Steps in order, each followed by its parts, longest first."""
        every = [TimedPart(step, name, calls, seconds) for (step, name), (calls, seconds) in self._found.items()]
        steps = dict.fromkeys(part.step for part in every if part.step)
        found: list[TimedPart] = []
        for step in steps:
            own = [part for part in every if part.step == step]
            found += [part for part in own if not part.name]
            found += sorted((part for part in own if part.name), key=lambda part: -part.seconds)
        return found


_asked: list[Times] = []


@contextmanager
def timed(wanted: bool = True) -> Iterator[Times | None]:
    """Measure the parts executed within the context; yields None if not wanted."""
    if not wanted:
        yield None
        return
    times = Times()
    _asked.append(times)
    try:
        yield times
    finally:
        _asked.remove(times)


@contextmanager
def step(name: str) -> Iterator[None]:
    """A step of the compilation; a nested step is a part of the outer one."""
    if not _asked:
        yield
        return
    times = _asked[-1]
    outer, times.step = times.step, times.step or name
    begun = time.perf_counter()
    try:
        yield
    finally:
        times.add(times.step, "" if not outer else name, time.perf_counter() - begun)
        times.step = outer


@contextmanager
def part(name: str) -> Iterator[None]:
    if not _asked:
        yield
        return
    times = _asked[-1]
    begun = time.perf_counter()
    try:
        yield
    finally:
        times.add(times.step, name, time.perf_counter() - begun)
