"""Return freed memory to the system."""

from __future__ import annotations

import ctypes
import sys


def release() -> None:
    """Return freed memory to the system.

    The C library keeps freed memory for later requests, so the memory of one compilation step would add to that of the
    next. Takes less than a millisecond; does nothing without glibc.
    """
    if _trim is not None:
        _trim(0)


_trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
