"""Shared libraries of our own, each loaded once."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from micronpu.base.errors import RuntimeUnavailableError

Functions = TypeVar("Functions")


def load_library(
    path: Path, what: str, version: str, wanted: int, declare: Callable[[ctypes.CDLL], Functions]
) -> tuple[ctypes.CDLL, Functions]:
    """Load a library that micronpu has built.

    Args:
        what: description for messages.
        version: name of its function that returns the version of its interface.
        wanted: required version.
        declare: sets the argument types of its functions.

    Returns:
        The library, and what ``declare`` returns.

    Raises:
        RuntimeUnavailableError: it cannot be loaded, lacks a function, or has another interface.
    """
    try:
        library = ctypes.CDLL(str(path))
        functions = declare(library)
        asked = getattr(library, version)
        asked.restype = ctypes.c_int32
        found = asked()
    except (OSError, AttributeError) as error:
        raise RuntimeUnavailableError(
            f"The {what} {path} cannot be loaded: {error}.", hint="delete that file, so that it is built again"
        ) from error
    if found != wanted:
        raise RuntimeUnavailableError(
            f"The {what} {path} has interface version {found}, but micronpu needs {wanted}.",
            hint="delete that file, so that it is built again",
        )
    return library, functions
