"""Names of dependencies that stand for something else for a while, for the threads that ask for it."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from micronpu.upstream.door import Door

Made = Callable[[Any, Callable[[], bool]], Any]


class Replaced:
    """What a door leads to, and something else in its place.

    Args:
        door: leads to the usual one.
        made: makes the other of the usual one, and of a function that says whether this thread has asked for it; for
            threads that have not it has to be as the usual one.
    """

    def __init__(self, door: Door, made: Made) -> None:
        self._door, self._made = door, made
        self._threads: Counter[int] = Counter()
        self._lock = threading.Lock()
        self._usual: Any = None

    @contextlib.contextmanager
    def meanwhile(self) -> Iterator[None]:
        """While it lasts, the other one is there for this thread."""
        own = threading.get_ident()
        with self._lock:
            if not self._threads:
                owner, name = self._door.owner()
                self._usual = getattr(owner, name)
                setattr(owner, name, self._made(self._usual, self._is_asked_for))
            self._threads[own] += 1
        try:
            yield
        finally:
            with self._lock:
                self._threads -= Counter([own])
                if not self._threads:
                    owner, name = self._door.owner()
                    setattr(owner, name, self._usual)

    def _is_asked_for(self) -> bool:
        return threading.get_ident() in self._threads


def calling(other: Callable[..., Any]) -> Made:
    """Makes a function that calls another one, with the usual one before what it is called with."""

    def made(usual: Any, is_asked_for: Callable[[], bool]) -> Any:
        @functools.wraps(usual)
        def call(*args: Any, **kwargs: Any) -> Any:
            return other(usual, *args, **kwargs) if is_asked_for() else usual(*args, **kwargs)

        return call

    return made
