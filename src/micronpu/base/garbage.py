"""Python's collector of garbage, which looks less often while something large is made."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

FEW_COLLECTIONS = 100_000, 50, 100
"""Thresholds of Python's collector: looking through all of torch for garbage takes a seventh of the time of its import,
and of a compilation's."""


@contextmanager
def few_collections() -> Iterator[None]:
    """Lets Python's collector look for garbage less often meanwhile, also in other threads.

    It stays as it is where the user has switched it off, or lets it look even less often.
    """
    with _lock:
        _before.append(gc.get_threshold())
        if len(_before) == 1 and 0 < _before[0][0] < FEW_COLLECTIONS[0]:
            gc.set_threshold(*FEW_COLLECTIONS)
    try:
        yield
    finally:
        with _lock:
            first = _before[0]
            _before.pop()
            if not _before and gc.get_threshold() == FEW_COLLECTIONS:
                gc.set_threshold(*first)


_lock = threading.Lock()
_before: list[tuple[int, int, int]] = []
"""The thresholds before each of the calls that have not ended, the user's first."""
