"""Read files, and write them atomically."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import sys
from pathlib import Path
from typing import IO

from micronpu.base.errors import FileError, OptionError
from micronpu.base.leaving import undone

_ADMINISTRATOR = 0
# Do not wait for a writer at the other end of a pipe.
READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)

_NO_LINKS = getattr(os, "O_NOFOLLOW", 0)


def write_file(path: str | os.PathLike[str], data: bytes) -> Path:
    """Write to a temporary file beside the target and rename it.

    Readers see the old file or the new one, never a part, and a failure leaves the old file unchanged; of two
    concurrent writers the last one wins. The file keeps its mode. The temporary name is random and created exclusively,
    so that it cannot be a link. A path that is not a regular file, such as ``/dev/stdout`` or a pipe, is written
    directly; a symbolic link is followed unless another user made it.

    Raises:
        FileError: the folder does not exist, or the file cannot be written.
    """
    shown = check_name(path)
    check_writable(shown)
    try:
        if shown.exists() and not shown.is_file():
            shown.write_bytes(data)
        else:
            _replace(_behind_links(shown), data)
    except OSError as error:
        raise FileError(
            f"{shown} cannot be written: {error.strerror or error}.", hint="another folder, or make room"
        ) from error
    return shown


def _replace(target: Path, data: bytes) -> None:
    unfinished = target.with_name(f".micronpu-{secrets.token_hex(16)}.tmp")
    with undone(unfinished.unlink):
        try:
            # O_EXCL fails if the name exists, even as a link. A new file gets the mode of the user's umask.
            with open(unfinished, "xb") as file:
                with contextlib.suppress(FileNotFoundError):
                    os.fchmod(file.fileno(), stat.S_IMODE(os.stat(target).st_mode))
                file.write(data)
            os.replace(unfinished, target)
        except FileExistsError:
            raise  # the existing file is not ours
        except BaseException:
            with contextlib.suppress(OSError):
                unfinished.unlink()
            raise


def _behind_links(path: Path) -> Path:
    """Resolve the links of a path that is to be replaced."""
    if path.is_symlink() and sys.platform != "win32":
        owner = os.lstat(path).st_uid
        if owner not in (os.getuid(), _ADMINISTRATOR):
            raise FileError(
                f"{path} cannot be written: it is a link that another user (number {owner}) made.",
                hint="another name, or the file that it points at",
            )
    return Path(os.path.realpath(path))


def check_name(path: str | os.PathLike[str]) -> Path:
    """Return the path if file systems can have it; raise `FileError` otherwise."""
    try:
        text = os.fspath(path)
    except TypeError:
        text = None
    if not isinstance(text, str):
        raise FileError(f"A {type(path).__name__} is given as a path.", hint='a string, such as "net.pte"')
    if "\0" in text:
        raise FileError(f"{text!r} is no path: it holds a NUL character.", hint="a path without it")
    try:
        os.lstat(text)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise FileError(f"The path {text} cannot be used: {error.strerror}.", hint="a shorter name") from error
    except UnicodeEncodeError as error:
        raise FileError(f"{text!r} is no path: it cannot be encoded.", hint="another name") from error
    return Path(text)


def read_file(
    path: str | os.PathLike[str], what: str = "", *, begin: int = 0, size: int = -1, links: bool = True
) -> bytes:
    """Return the bytes of a file.

    Args:
        what: description of the file, as the beginning of the message, such as "The program".
        begin, size: of the part to be read; the whole file by default. What is after the end of the file is left out.
        links: read what a symbolic link points at.

    Raises:
        FileError: it cannot be read, or is not a regular file; reading a pipe or a device may never end.
    """
    name = check_name(path)
    shown = f"{what} {name}" if what else str(name)
    try:
        with open(os.open(name, READ | (0 if links else _NO_LINKS)), "rb") as file:
            return read_regular(file, begin, size)
    except OSError as error:
        hint = "a file in it" if name.is_dir() else "check the path"
        raise FileError(f"{shown} cannot be read: {error.strerror or error}.", hint=hint) from error


def read_regular(file: IO[bytes], begin: int = 0, size: int = -1) -> bytes:
    """Read an open file, or a part of it, up to its initial size, so that reading ends; raise `OSError` if it is not
    regular."""
    found = os.fstat(file.fileno())
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is a folder" if stat.S_ISDIR(found.st_mode) else "it is no regular file")
    file.seek(min(begin, found.st_size))
    rest = max(found.st_size - begin, 0)
    return file.read(rest if size < 0 else min(size, rest))


def check_writable(path: str | os.PathLike[str]) -> None:
    """Refuse early what `write_file` would refuse after the work is done."""
    target = check_name(path)
    if target.is_dir():
        raise FileError(f"{target} cannot be written: it is a folder.", hint=f"a file in it, {target / 'NAME'}")
    what = f"{target} cannot be written"
    check_folder(target.parent, what)
    if not os.access(target if target.exists() else target.parent, os.W_OK):
        raise FileError(f"{what}: permission denied.", hint="another folder")


def check_folder(folder: str | os.PathLike[str], what: str = "The output cannot be written") -> None:
    """Refuse a path that is not an existing folder, with a message that begins with ``what``."""
    path = check_name(folder)
    if not path.exists():
        raise FileError(f"{what}: the folder {path} does not exist.", hint=f"mkdir -p {path}")
    if not path.is_dir():
        raise FileError(f"{what}: {path} is a file, not a folder.", hint="another folder")
    if not os.access(path, os.W_OK):
        raise FileError(f"{what}: nothing may be written to {path}.", hint="another folder")


def check_new_folder(folder: str | os.PathLike[str]) -> None:
    """Refuse early what `make_folder` would refuse after the work is done."""
    path = check_name(folder).absolute()
    there = next(p for p in (path, *path.parents) if os.path.lexists(p))
    check_folder(there, f"{folder} cannot be written")


def make_folder(folder: str | os.PathLike[str]) -> Path:
    """Return the folder after creating it, with its parents, if it is missing."""
    path = check_name(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{path} cannot be made: {error.strerror or error}.", hint="another folder") from error
    return path


def check_intermediates(folder: object) -> None:
    """Raise `OptionError` if `intermediates_dir` cannot be a folder."""
    if not isinstance(folder, str):
        raise OptionError(
            f"`intermediates_dir` is {folder!r}; it is the path of a folder as a string.", hint="a path such as 'out'"
        )
    if not folder:
        return
    try:
        path = check_name(folder)
    except FileError as error:
        raise OptionError(f"`intermediates_dir` cannot be used: {error.what}", hint=error.hint) from error
    blocking = next((p for p in (path, *path.parents) if p.exists() and not p.is_dir()), None)
    if blocking is not None:
        raise OptionError(
            f"`intermediates_dir` is {folder}, but {blocking} is a file, not a folder.", hint="another folder"
        )
