"""Memory that nobody needs any more, given back to the system."""

from __future__ import annotations

import ctypes
import sys


def release() -> None:
    """Gives back what was freed.

    The C library keeps freed memory for the next request: what one step of a compilation took and freed in small pieces
    and large would stand beside what the next one takes. Takes less than a millisecond; without glibc nothing happens.
    """
    if _trim is not None:
        _trim(0)


_trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
