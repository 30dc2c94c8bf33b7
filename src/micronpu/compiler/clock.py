"""The steps of a compilation: progress callbacks, times, and the origin of errors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from micronpu.base import timing
from micronpu.base.errors import InternalError, MicroNpuError, first_line
from micronpu.base.memory import release

ProgressCallback = Callable[[str, float], None]
"""Progress callback: name of the current step, and its finished fraction, 0 to 1."""


_OF_THE_USER = ("export", "train")
"""Steps that run code of the user, whose errors are passed on unchanged."""


class Clock:
    """Reports the steps of a compilation and measures their times.

    Args:
        callback: progress callback; default: a display in notebooks, otherwise none.

    Attributes:
        seconds: wall time per step, summed over methods.
    """

    def __init__(self, callback: ProgressCallback | None) -> None:
        self.seconds: dict[str, float] = {}
        self._early: dict[str, float] = {}
        self._callback = callback or timing.notebook_callback()
        self._raised: Exception | None = None

    @contextmanager
    def step(self, name: str) -> Iterator[Callable[[float], None]]:
        start = time.perf_counter()
        self._notify(name, 0.0)
        with self._explained(name):
            yield lambda part: self._notify(name, part)
        self._notify(name, 1.0)
        seconds = time.perf_counter() - start + self._early.pop(name, 0.0)
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds  # each of several methods has the step

    @contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        """Turn an unexpected error into a message, unless the user's code has raised it."""
        try:
            with timing.step(name):
                yield
                release()
        except MicroNpuError:
            raise
        except Exception as error:
            if name in _OF_THE_USER or error is self._raised:
                raise
            raise InternalError(
                f"The step `{name}` of the compilation failed: {type(error).__name__}: "
                f"{first_line(error) or 'no message'}.",
                hint="parts of the model alone, to find the operator that does it, and a report of this defect",
            ) from error

    def _notify(self, name: str, part: float) -> None:
        if self._callback is not None:
            try:
                self._callback(name, part)
            except Exception as error:
                self._raised = error  # of the callback, not of the step
                raise

    @contextmanager
    def early(self, name: str) -> Iterator[None]:
        """Run a part of a later step, and add its time to that step."""
        start = time.perf_counter()
        with self._explained(name):
            yield
        self._early[name] = self._early.get(name, 0.0) + time.perf_counter() - start
