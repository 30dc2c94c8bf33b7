"""Answers on disk that took long to get, so that nobody waits for them twice.

An entry is a file of its own, called by a hash of all that its answer rests on: the inputs, the code of micronpu and
the tools.  It begins with a hash of itself, so that what is damaged is found and left aside; what somebody else could
have written is not read.  A finished entry is moved into place in one step, so that parallel processes never see half
of one, and the entries that were not used for longest go when there are too many.  Nothing in it is ever executed.

`MICRONPU_CACHE` names another folder, or `off` for none.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import os
import platform
import secrets
import stat
import sys
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from micronpu.base.callers import warn
from micronpu.base.files import READ, read_regular

FOLDER = "MICRONPU_CACHE"
_OFF = ("off", "0", "no")
_MAGIC = b"micronpu answer 1\n"
_DIGEST = 32
_SUFFIX = ".answer"
_MOST_BYTES = 512 * 2**20
_MOST_ENTRIES = 20_000
_PARTS = 16
"""It is looked whether there is too much whenever about this part of what there may be was written, by chance, since
many processes write; then as much is deleted beyond the limit."""
_UNFINISHED_SECONDS = 3600.0
"""After which an unfinished file is nobody's any more."""


class CacheWarning(UserWarning):
    """Answers cannot be kept, or what was kept cannot be used; what is computed is the same without them."""


class Usage(NamedTuple):
    """What a cache holds.

    Attributes:
        folder: where; None where there is no cache.
        why: there is none, as a clause; "" where there is one.
    """

    folder: Path | None
    entries: int = 0
    bytes: int = 0
    why: str = ""


def user_folder() -> Path | None:
    """Where micronpu keeps what can be made again: `$MICRONPU_CACHE_DIR`, or `micronpu` in the user's cache directory.

    Returns:
        The folder, which need not be there; None where the user has no home directory.
    """
    try:
        if asked := os.environ.get("MICRONPU_CACHE_DIR"):
            return Path(asked).expanduser().absolute()
        if sys.platform == "darwin":
            return Path.home() / "Library/Caches/micronpu"
        if sys.platform == "win32":
            return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData/Local") / "micronpu"
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "micronpu"
    except RuntimeError:  # HOME is not set, and the system knows no user of this number
        return None


class Cache:
    """The answers of one folder.

    Args:
        folder: None for the user's own, or what the environment names.
        most_bytes, most_entries: at which those that were not used for longest go.

    Attributes:
        tell: is called once with each kind of trouble, a sentence; a `CacheWarning` unless set.
        hits, misses: of this process.
    """

    def __init__(
        self, folder: Path | None = None, most_bytes: int = _MOST_BYTES, most_entries: int = _MOST_ENTRIES
    ) -> None:
        self._own, self._most_bytes, self._most_entries = folder, most_bytes, most_entries
        self._off = 0
        self._said: set[str] = set()
        self._checked: dict[Path, bool] = {}
        self._full = False
        self.tell: Callable[[str], None] | None = None
        self.hits = self.misses = 0

    @property
    def folder(self) -> Path | None:
        """Where the entries are; None where nothing is kept."""
        if self._off:
            return None
        if self._own is not None:
            return self._own
        asked = os.environ.get(FOLDER, "")
        if asked.lower() in _OFF:
            return None
        if asked:
            return Path(asked).expanduser().absolute()
        user = user_folder()
        return user / "answers" if user is not None else None

    @contextlib.contextmanager
    def left_out(self) -> Iterator[None]:
        """Nothing is read or written meanwhile."""
        self._off += 1
        try:
            yield
        finally:
            self._off -= 1

    def entry(self, kind: str, tools: tuple[str, ...], *inputs: Any) -> Entry:
        """The place of an answer, which may be empty.

        Args:
            kind: of answer.
            tools: packages that had a say in it, whose versions belong to the inputs; Python and micronpu always do.
            inputs: all that it rests on otherwise: numbers, texts, bytes, arrays, enumerations, data classes, and
                tuples, lists, sets and mappings of them.  With anything else nothing is kept.
        """
        folder = self.folder
        if folder is None or not self._is_own(folder):
            return Entry(self, None, "")
        digest = hashlib.sha256()
        try:
            _feed(digest, (kind, code(), tuple(_version(tool) for tool in tools), inputs))
        except _NoKeyError:
            return Entry(self, None, "")
        return Entry(self, folder, digest.hexdigest())

    def usage(self) -> Usage:
        """What it holds."""
        folder = self.folder
        if folder is None:
            return Usage(None, why=f"{FOLDER} says so" if os.environ.get(FOLDER) else "this user has no home directory")
        found = list(_entries(folder))
        return Usage(folder, len(found), sum(size for _, size, _ in found))

    def clear(self) -> Usage:
        """Deletes all entries; returns what they were."""
        usage = self.usage()
        for path, _, _ in _entries(usage.folder) if usage.folder is not None else ():
            with contextlib.suppress(OSError):
                path.unlink()
        return usage

    # -- what entries ask for

    def read(self, folder: Path, name: str) -> bytes | None:
        """The bytes of an entry; None where there are none that can be trusted."""
        data = self._read(folder / f"{name}{_SUFFIX}", name)
        self.hits, self.misses = self.hits + (data is not None), self.misses + (data is None)
        return data

    def _read(self, path: Path, name: str) -> bytes | None:
        try:
            opened = os.open(path, READ | getattr(os, "O_NOFOLLOW", 0))
        except FileNotFoundError:
            return None
        except OSError as error:
            self._say("read", f"{path} cannot be read, and is left aside: {error.strerror or error}")
            return None
        with open(opened, "rb") as file:
            if why := _foreign(os.fstat(opened), is_folder=False):
                self._say("foreign", f"{path} {why}, so that it is left aside")
                return None
            try:
                data = read_regular(file)
            except OSError:
                data = b""
            with contextlib.suppress(OSError):
                os.utime(path)  # whoever was not used for longest goes first
        start = len(_MAGIC) + _DIGEST
        body = memoryview(data)[start:]
        if data[:start] != _MAGIC + _sum(name, body):
            self._say("damaged", f"{path} is damaged, and deleted")
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        return bytes(body)

    def write(self, folder: Path, name: str, data: bytes) -> None:
        """Keeps an entry, unless there is no room."""
        if self._full or len(data) > self._most_bytes:
            return
        unfinished = folder / f"{secrets.token_hex(16)}.tmp"
        try:
            opened = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
            with open(opened, "wb") as file:
                file.write(_MAGIC + _sum(name, data))
                file.write(data)
            os.replace(unfinished, folder / f"{name}{_SUFFIX}")
        except OSError as error:
            self._full = True
            self._say("full", f"Nothing can be kept in {folder}: {error.strerror or error}")
        finally:
            with contextlib.suppress(OSError):
                unfinished.unlink()
        # Looking at 20,000 entries takes as long as compiling a small network.
        chance = _PARTS * (len(data) / self._most_bytes + 1 / self._most_entries)
        if int(name[:8], 16) < chance * 2**32:
            self.prune(1 - 1 / _PARTS)

    def prune(self, part: float = 1.0) -> None:
        """Deletes the entries that were not used for longest, where there are too many.

        Args:
            part: of the limits that is left where they are exceeded.
        """
        folder = self.folder
        if folder is None:
            return
        found = sorted(_entries(folder), key=lambda entry: entry[2], reverse=True)
        if len(found) <= self._most_entries and sum(size for _, size, _ in found) <= self._most_bytes:
            part = 1.0
        held = 0
        for number, (path, size, _) in enumerate(found):
            held += size
            if held > part * self._most_bytes or number >= part * self._most_entries:
                with contextlib.suppress(OSError):
                    path.unlink()
        for path in folder.glob("*.tmp"):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < time.time() - _UNFINISHED_SECONDS:
                    path.unlink()

    def _is_own(self, folder: Path) -> bool:
        """Whether a folder is the user's alone; it is made if it is missing."""
        if folder not in self._checked:
            try:
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                why = _foreign(os.lstat(folder), is_folder=True)
                if why:
                    self._say("folder", f"The folder {folder} {why}, so that nothing is kept in it")
                self._checked[folder] = not why
            except OSError as error:
                self._say("folder", f"Nothing can be kept in {folder}: {error.strerror or error}")
                self._checked[folder] = False
        return self._checked[folder]

    def _say(self, kind: str, sentence: str) -> None:
        if kind in self._said:
            return
        self._said.add(kind)
        text = f"{sentence}. Results are the same without; the environment variable {FOLDER} names another folder."
        if self.tell is not None:
            self.tell(text)
        else:
            warn(text, CacheWarning)


class Entry(NamedTuple):
    """The place of one answer.

    Attributes:
        folder: None where nothing is kept.
        name: hash of all that the answer rests on.
    """

    cache: Cache
    folder: Path | None
    name: str

    @property
    def is_kept(self) -> bool:
        """Whether anything is: where not, nobody needs to put the answer into bytes."""
        return self.folder is not None

    def read(self) -> bytes | None:
        """The answer; None where there is none yet."""
        return self.cache.read(self.folder, self.name) if self.folder is not None else None

    def write(self, data: bytes) -> None:
        """Keeps the answer."""
        if self.folder is not None:
            self.cache.write(self.folder, self.name, data)


CACHE = Cache()
"""The cache of this process."""


@contextlib.contextmanager
def no_cache() -> Iterator[None]:
    """Compiles without answers of earlier compilations, and keeps none: ``with micronpu.no_cache(): ...``.

    Programs and reports are the same, they only take longer.
    """
    with CACHE.left_out():
        yield


@functools.cache
def code() -> bytes:
    """A hash of micronpu's own modules, whose every line may change an answer."""
    digest = hashlib.sha256(platform.python_version().encode())
    root = Path(__file__).resolve().parents[1]
    for path in sorted(root.rglob("*.py")):
        data = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(data)}\0".encode() + data)
    return digest.digest()


@functools.cache
def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _sum(name: str, data: bytes | memoryview) -> bytes:
    return hashlib.sha256(name.encode() + data).digest()


def _entries(folder: Path) -> Iterator[tuple[Path, int, float]]:
    """Path, bytes and time of last use of each entry."""
    try:
        with os.scandir(folder) as found:
            for file in found:
                with contextlib.suppress(OSError):
                    if file.name.endswith(_SUFFIX):
                        status = file.stat(follow_symlinks=False)
                        if stat.S_ISREG(status.st_mode):
                            yield Path(file.path), status.st_size, status.st_mtime
    except OSError:
        return


def _foreign(status: os.stat_result, *, is_folder: bool) -> str:
    """Why somebody else may have made a file or folder, as a clause; "" where nobody may."""
    if not (stat.S_ISDIR(status.st_mode) if is_folder else stat.S_ISREG(status.st_mode)):
        return "is no folder" if is_folder else "is no regular file"
    if sys.platform == "win32":
        return ""
    if status.st_uid != os.getuid():
        return f"belongs to another user (number {status.st_uid})"
    if status.st_mode & 0o022:
        return f"can be written to by others (mode {stat.S_IMODE(status.st_mode):o})"
    return ""


class _NoKeyError(Exception):
    """A value has no bytes that say what it is."""


def _feed(digest: Any, value: Any) -> None:
    """Adds a value to a hash, so that values which differ in anything give another."""
    if value is None or isinstance(value, (bool, Enum)):
        _add(digest, f"{type(value).__qualname__}.{value!r}" if not isinstance(value, Enum) else _named(value), b"")
    elif isinstance(value, (int, float, str)):
        _add(digest, type(value).__name__, (value.hex() if isinstance(value, float) else str(value)).encode())
    elif isinstance(value, (bytes, memoryview, bytearray)):
        _add(digest, "bytes", bytes(value))
    elif isinstance(value, (tuple, list)):
        _feed_items(digest, value)
    elif isinstance(value, (set, frozenset)):
        _feed(digest, ("set", *sorted(value, key=repr)))
    elif isinstance(value, Mapping):
        _feed(digest, ("mapping", *((key, value[key]) for key in value)))
    elif is_dataclass(value) and not isinstance(value, type):
        kind = type(value)
        _add(digest, f"{kind.__module__}.{kind.__qualname__}", b"")
        for field in fields(value):
            _feed(digest, getattr(value, field.name))
    elif hasattr(value, "dtype") and hasattr(value, "tobytes") and value.dtype.kind in "biuf":  # NumPy's
        as_it_lies = value.flags.c_contiguous and value.size  # without a copy
        data = value.reshape(-1).view("u1") if as_it_lies else value.tobytes()
        _add(digest, f"{value.dtype.str}{value.shape}", data)
    else:
        raise _NoKeyError


def _feed_items(digest: Any, value: Sequence[Any]) -> None:
    """Adds a tuple or list to a hash; one of numbers alone in one piece."""
    kinds = set(map(type, value))
    _add(digest, f"{type(value).__name__} of {len(value)}", b"")
    if kinds == {float}:
        _add(digest, "floats", array("d", value).tobytes())
    elif kinds == {int} and max(value) < 2**63 and min(value) >= -(2**63):
        _add(digest, "ints", array("q", value).tobytes())
    else:
        for item in value:
            _feed(digest, item)


def in_short(value: Any) -> Any:
    """A hash that stands for a value among the inputs of many entries; the value itself where it has none."""
    digest = hashlib.sha256()
    try:
        _feed(digest, value)
    except _NoKeyError:
        return value
    return digest.digest()


def _named(value: Enum) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}.{value.name}"


def _add(digest: Any, kind: str, data: Any) -> None:
    text = kind.encode()
    digest.update(len(text).to_bytes(4, "little") + text + len(data).to_bytes(8, "little"))
    digest.update(data)
