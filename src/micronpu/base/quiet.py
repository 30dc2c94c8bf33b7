"""Silence of other packages while micronpu works with them."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator

_STANDARD_ERROR = 2


@contextlib.contextmanager
def quiet(most: int = logging.WARNING) -> Iterator[None]:
    """Keeps from the user what torch, torchao and ExecuTorch warn of about themselves, for as long as it is open.

    Args:
        most: level of what is kept back of their logs; `logging.ERROR` where their errors become sentences of ours.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        disabled = logging.root.manager.disable
        logging.disable(most)
        try:
            yield
        finally:
            logging.disable(disabled)


@contextlib.contextmanager
def libraries_say(shown: Callable[[bytes], bool]) -> Iterator[None]:
    """Holds back what libraries write to standard error past Python, for as long as it is open.

    Args:
        shown: says afterwards of each line whether the user gets it.
    """
    try:
        kept = os.dup(_STANDARD_ERROR)
    except OSError:  # it is closed: nobody hears them
        yield
        return
    sys.stderr.flush()
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), _STANDARD_ERROR)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, _STANDARD_ERROR)
            os.close(kept)
            said.seek(0)
            for line in said:
                if shown(line):
                    os.write(_STANDARD_ERROR, line)
