"""What other packages warn of and log about themselves is kept from the user, in the threads that ask for it alone."""

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
"""Loggers that are used by the import that makes them."""


class _Here(threading.local):
    """What the running thread keeps back.

    Attributes:
        most: highest level of logs, 0 outside of `quiet`.
    """

    most = logging.NOTSET


class _IsQuiet:
    """Stands in a filter of `warnings` for the pattern of a message: it matches in threads that are quiet."""

    def match(self, message: str) -> bool:
        return _here.most > logging.NOTSET


_here = _Here()
_FILTER: Any = ("ignore", _IsQuiet(), Warning, None, 0)
_own_process = False
_loggers = -1
"""How many loggers there were when the filter was last added to them."""


def own_process() -> None:
    """Notes that the process is a command of ours, whose standard error belongs to nobody else."""
    global _own_process
    _own_process = True


@contextlib.contextmanager
def quiet(most: int = logging.WARNING) -> Iterator[None]:
    """Keeps from the user what torch, torchao and ExecuTorch warn of about themselves, for as long as it is open.

    Other threads see all of their own warnings and logs.  `warnings.catch_warnings` and `logging.disable` act on every
    thread, and what one thread saves another restores; the filters here are left in place and act where they are asked.

    Args:
        most: level of what is kept back of their logs; `logging.ERROR` where their errors become messages of ours.
    """
    _install()
    before = _here.most
    _here.most = max(before, most)
    try:
        yield
    finally:
        _here.most = before


@contextlib.contextmanager
def unprinted() -> Iterator[None]:
    """In a command of ours, keeps back what torch prints to standard error; elsewhere `sys.stderr` is left alone."""
    with contextlib.redirect_stderr(io.StringIO()) if _own_process else contextlib.nullcontext():
        yield


def _install() -> None:
    """Puts our filters in front of the user's, which other packages and `catch_warnings` may have replaced."""
    if not warnings.filters or warnings.filters[0] is not _FILTER:
        filters: Any = warnings.filters
        filters.insert(0, _FILTER)
        while filters.count(_FILTER) > 1:
            del filters[len(filters) - 1 - filters[::-1].index(_FILTER)]
    global _loggers
    made = logging.root.manager.loggerDict
    if _loggers == len(made):  # none is ever removed
        return
    _loggers = len(made)
    for name, logger in (("", logging.root), *made.items()):
        if isinstance(logger, logging.Logger) and (not name or name.partition(".")[0] in _PACKAGES):
            logger.addFilter(_is_shown)  # nothing where it is there


def _is_shown(record: logging.LogRecord) -> bool:
    """Whether a log gets through; of those of the root logger, ExecuTorch's are told by their file."""
    if record.levelno > _here.most:
        return True
    folders = record.pathname.split(os.sep) if record.name == "root" else [record.name.partition(".")[0]]
    return not any(package in folders for package in _PACKAGES)


for _name in _WHILE_IMPORTED:
    logging.getLogger(_name)
_install()
