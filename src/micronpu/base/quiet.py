"""Silence of other packages while micronpu works with them."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator


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
