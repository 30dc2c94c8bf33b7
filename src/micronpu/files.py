"""Writing files whole or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from micronpu.errors import FileError, OptionError


def write_file(path: str | os.PathLike[str], data: bytes) -> Path:
    """Writes to a temporary name beside the target and renames.

    A reader sees the old file or the new one, never a part, and a failure leaves the old one as it was.  What is no
    regular file, such as ``/dev/stdout`` or a pipe, is written to directly; a symbolic link keeps pointing where it
    points.

    Raises:
        FileError: the folder does not exist, or the file cannot be written.
    """
    shown = Path(path)
    check_writable(shown)
    target = Path(os.path.realpath(shown))
    temporary = target.with_name(f".{target.name[:200]}.{os.getpid()}.tmp")
    try:
        if shown.exists() and not shown.is_file():
            shown.write_bytes(data)
            return shown
        temporary.write_bytes(data)
        os.replace(temporary, target)
    except OSError as error:
        raise FileError(
            f"{shown} cannot be written: {error.strerror or error}.", hint="another folder, or make room"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    return shown


def check_writable(path: str | os.PathLike[str]) -> None:
    """Refuses early what `write_file` would refuse after the work is done.

    Raises:
        FileError: the path is a folder, its folder does not exist, or nothing may be written there.
    """
    target = Path(path)
    if target.is_dir():
        raise FileError(f"{target} cannot be written: it is a folder.", hint=f"a file in it, {target / 'NAME'}")
    what = f"{target} cannot be written"
    check_folder(target.parent, what)
    if not os.access(target if target.exists() else target.parent, os.W_OK):
        raise FileError(f"{what}: permission denied.", hint="another folder")


def check_folder(folder: str | os.PathLike[str], what: str = "The output cannot be written") -> None:
    """Refuses a folder that does not exist or is none.

    Args:
        what: the beginning of the sentence.
    """
    path = Path(folder)
    if not path.exists():
        raise FileError(f"{what}: the folder {path} does not exist.", hint=f"mkdir -p {path}")
    if not path.is_dir():
        raise FileError(f"{what}: {path} is a file, not a folder.", hint="another folder")
    if not os.access(path, os.W_OK):
        raise FileError(f"{what}: nothing may be written to {path}.", hint="another folder")


def check_intermediates(folder: Any) -> None:
    """Raises `OptionError` where `intermediates_dir` can be no folder."""
    if not isinstance(folder, str):
        raise OptionError(f"`intermediates_dir` is {folder!r}; it is the path of a folder as a string.")
    if not folder:
        return
    path = Path(folder)
    blocking = next((p for p in (path, *path.parents) if p.exists() and not p.is_dir()), None)
    if blocking is not None:
        raise OptionError(
            f"`intermediates_dir` is {folder}, but {blocking} is a file, not a folder.", hint="another folder"
        )
