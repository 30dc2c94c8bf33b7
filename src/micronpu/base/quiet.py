"""Suppress warnings and logs of other packages about their own code, per thread."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import threading
import warnings
from collections.abc import Iterator
from typing import Any

_PACKAGES = ("torch", "torchao", "executorch")
_WHILE_IMPORTED = ("torchao", "torchao.kernel.intmm")
"""Loggers that are used by the import that creates them."""


class _Here(threading.local):
    """The highest suppressed log level of the current thread, 0 outside of `quiet`."""

    most = logging.NOTSET


class _IsQuiet:
    """A message pattern for a filter of `warnings` that matches every message in threads that are quiet."""

    def match(self, message: str) -> bool:
        return _here.most > logging.NOTSET


_here = _Here()
_FILTER: Any = ("ignore", _IsQuiet(), Warning, None, 0)
_own_process = False
_lock = threading.Lock()
_contexts = 0
"""Number of contexts that threads are in."""
_lists: dict[int, Any] = {}
"""Lists of filters that have ours: `warnings.filters`, and those that `catch_warnings` is going to restore."""
_seen: list[Any] = []
"""Loggers of the process, of which there are hundreds, when those of the packages were last looked for among them."""
_loggers: list[logging.Logger] = [logging.root]
"""The root logger and those of the packages."""


def own_process() -> None:
    """Declare that the process is a command of ours, whose standard error we may redirect."""
    global _own_process
    _own_process = True


@contextlib.contextmanager
def quiet(most: int = logging.WARNING) -> Iterator[None]:
    """Suppress warnings and logs of torch, torchao and ExecuTorch about their own code within the context.

    Other threads are unaffected. `warnings.catch_warnings` and `logging.disable` act on every thread, and threads
    restore each other's state; these filters check the current thread, and the last thread removes them.

    Args:
        most: highest suppressed log level; `logging.ERROR` if our messages replace their errors.
    """
    before = _here.most
    _count(1)
    _here.most = max(before, most)
    try:
        yield
    finally:
        _here.most = before
        _count(-1)


@contextlib.contextmanager
def unprinted() -> Iterator[None]:
    """Suppress torch's output to standard error in commands of ours; elsewhere leave `sys.stderr` unchanged."""
    with contextlib.redirect_stderr(io.StringIO()) if _own_process else contextlib.nullcontext():
        yield


def _count(step: int) -> None:
    """Count contexts; insert our filters before the user's for the first, and remove them after the last."""
    global _contexts
    with _lock:
        _contexts += step
        filters: Any = warnings.filters
        _lists[id(filters)] = filters
        if _contexts and filters[:1] != [_FILTER]:
            filters.insert(0, _FILTER)
        while not _contexts and _lists:
            filters = _lists.popitem()[1]
            filters[:] = [each for each in filters if each is not _FILTER]
        # A placeholder may have become a logger, so their number is not enough.
        if (there := [*logging.root.manager.loggerDict.values()]) != _seen:
            loggers = [each for each in there if isinstance(each, logging.Logger)]
            ours = [each for each in loggers if each.name.partition(".")[0] in _PACKAGES]
            _seen[:], _loggers[:] = there, [logging.root, *ours]
        for logger in _loggers:
            (logger.addFilter if _contexts else logger.removeFilter)(_is_shown)  # no effect if it is there already


def _is_shown(record: logging.LogRecord) -> bool:
    """True if a log record passes; ExecuTorch's records in the root logger are recognized by their file."""
    if record.levelno > _here.most:
        return True
    folders = record.pathname.split(os.sep) if record.name == "root" else [record.name.partition(".")[0]]
    return not any(package in folders for package in _PACKAGES)


for _name in _WHILE_IMPORTED:
    logging.getLogger(_name)
