"""Cache on disk of results that take long to compute.

Each entry is a file named by a hash of everything that determines its result: the inputs, the code of micronpu and the
tools. It starts with a checksum, so that damaged entries are detected; files that another user could have written are
ignored. Entries are moved into place atomically, so that parallel processes never see partial ones, and the least
recently used entries are deleted when there are too many. Entries are never executed.

`MICRONPU_CACHE` sets another folder; `off` disables the cache.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import secrets
import stat
import sys
import time
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from micronpu.base.callers import warn
from micronpu.base.files import READ, read_regular
from micronpu.base.installed import installed

FOLDER = "MICRONPU_CACHE"
_OFF = ("off", "0", "no")
_MAGIC = b"micronpu answer 1\n"
_DIGEST = 32
_SUFFIX = ".answer"
_MOST_BYTES = 512 * 2**20
_MOST_ENTRIES = 20_000
_PARTS = 16
"""Size checks per limit: a check happens at random, on average each time 1 / 16 of the limit has been written, since
many processes write; it prunes to 15 / 16 of the limit."""
_UNFINISHED_SECONDS = 3600.0
"""Age in seconds after which an unfinished file is abandoned."""


class CacheWarning(UserWarning):
    """The cache cannot be written or read; results are the same without it."""


class Usage(NamedTuple):
    """Size of a cache; without a folder there is none, and ``why`` is the reason, as a clause."""

    folder: Path | None
    entries: int = 0
    bytes: int = 0
    why: str = ""


def user_folder() -> Path | None:
    """Folder for files that can be regenerated: `$MICRONPU_CACHE_DIR`, or `micronpu` in the user's cache directory.

    Empty and relative paths in HOME, XDG_CACHE_HOME and LOCALAPPDATA are ignored: they are inside the current folder.

    Returns:
        The folder, which may not exist yet; None if the user has no home directory.
    """
    try:
        if asked := os.environ.get("MICRONPU_CACHE_DIR"):
            return Path(asked).expanduser().absolute()
        if sys.platform == "darwin":
            return _home() / "Library/Caches/micronpu"
        if sys.platform == "win32":
            return (_absolute("LOCALAPPDATA") or _home() / "AppData/Local") / "micronpu"
        return (_absolute("XDG_CACHE_HOME") or _home() / ".cache") / "micronpu"
    except RuntimeError:  # of `_home`, or HOME is not set and the system has no entry for this user number
        return None


def _absolute(name: str) -> Path | None:
    path = Path(os.environ.get(name, ""))
    return path if path.is_absolute() else None


def _home() -> Path:
    """Return the home directory; raise `RuntimeError` if there is none, or HOME is empty or relative."""
    if sys.platform != "win32" and "HOME" in os.environ and _absolute("HOME") is None:
        raise RuntimeError
    return Path.home()


class Cache:
    """The cached results in one folder.

    Args:
        folder: default: the one that the environment names, or the user's.
        most_bytes, most_entries: limits at which the least recently used entries are deleted.

    Attributes:
        notify: called once with a message for each kind of problem; default: a `CacheWarning`.
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
        self.notify: Callable[[str], None] | None = None
        self.hits = self.misses = 0

    @property
    def folder(self) -> Path | None:
        """Folder of the entries; None if the cache is disabled."""
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
        """Disable the cache within the context."""
        self._off += 1
        try:
            yield
        finally:
            self._off -= 1

    def entry(self, kind: str, tools: tuple[str, ...], *inputs: object) -> Entry:
        """Return the entry of a result, which may be empty.

        Args:
            kind: of result.
            tools: packages that affect it; the key includes their versions, and those of Python and micronpu.
            inputs: everything else that determines it: numbers, texts, bytes, arrays, enumerations, data classes,
                and tuples, lists, sets and mappings of them. Any other type disables caching of this entry.
        """
        folder = self.folder
        if folder is None or not self._is_own(folder):
            return Entry(self, None, "")
        digest = hashlib.sha256()
        try:
            _feed(digest.update, (kind, code(), tuple(installed(tool) for tool in tools), inputs))
        except _NoKeyError:
            return Entry(self, None, "")
        return Entry(self, folder, digest.hexdigest())

    def usage(self) -> Usage:
        """Return the number and size of the entries."""
        folder = self.folder
        if folder is None:
            return Usage(None, why=f"{FOLDER} says so" if os.environ.get(FOLDER) else "this user has no home directory")
        found = list(_entries(folder))
        return Usage(folder, len(found), sum(size for _, size, _ in found))

    def clear(self) -> Usage:
        """Delete all entries; return their number and size."""
        usage = self.usage()
        for path, _, _ in _entries(usage.folder) if usage.folder is not None else ():
            with contextlib.suppress(OSError):
                path.unlink()
        return usage

    # -- used by entries

    def read(self, folder: Path, name: str) -> bytes | None:
        """Return the bytes of an entry; None if there is none that can be trusted."""
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
            if why := foreign(os.fstat(opened), is_folder=False):
                self._say("foreign", f"{path} {why}, so that it is left aside")
                return None
            try:
                data = read_regular(file)
            except OSError:
                data = b""
            with contextlib.suppress(OSError):
                os.utime(path)  # the least recently used are deleted first
        start = len(_MAGIC) + _DIGEST
        body = memoryview(data)[start:]
        if data[:start] != _MAGIC + _sum(name, body):
            self._say("damaged", f"{path} is damaged, and deleted")
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        return bytes(body)

    def write(self, folder: Path, name: str, data: bytes) -> None:
        """Store an entry if there is space."""
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
            self._say("full", f"The cache cannot write to {folder}: {error.strerror or error}")
        finally:
            with contextlib.suppress(OSError):
                unfinished.unlink()
        # Listing 20,000 entries takes as long as compiling a small network.
        chance = _PARTS * (len(data) / self._most_bytes + 1 / self._most_entries)
        if int(name[:8], 16) < chance * 2**32:
            self.prune(1 - 1 / _PARTS)

    def prune(self, part: float = 1.0) -> None:
        """Delete the least recently used entries if the limits are exceeded, down to a fraction of them."""
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
        """True if a folder belongs to the user alone; create it if it is missing."""
        if folder not in self._checked:
            try:
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                why = foreign(os.lstat(folder), is_folder=True)
                if why:
                    self._say("folder", f"The folder {folder} {why}, so that nothing is kept in it")
                self._checked[folder] = not why
            except OSError as error:
                self._say("folder", f"The cache cannot write to {folder}: {error.strerror or error}")
                self._checked[folder] = False
        return self._checked[folder]

    def _say(self, kind: str, sentence: str) -> None:
        if kind in self._said:
            return
        self._said.add(kind)
        text = f"{sentence}. Results are the same without; the environment variable {FOLDER} names another folder."
        if self.notify is not None:
            self.notify(text)
        else:
            warn(text, CacheWarning)


class Entry(NamedTuple):
    """The location of one result by the hash of everything that determines it; no folder if caching is disabled."""

    cache: Cache
    folder: Path | None
    name: str

    @property
    def is_kept(self) -> bool:
        """True if caching is enabled; if not, callers need not serialize the result."""
        return self.folder is not None

    def read(self) -> bytes | None:
        """Return the result; None if there is none yet."""
        return self.cache.read(self.folder, self.name) if self.folder is not None else None

    def write(self, data: bytes) -> None:
        if self.folder is not None:
            self.cache.write(self.folder, self.name, data)


CACHE = Cache()
"""The cache of this process."""


@contextlib.contextmanager
def no_cache() -> Iterator[None]:
    """Disable the compilation cache: ``with micronpu.no_cache(): ...``.

    Programs and reports are the same, but take longer.
    """
    with CACHE.left_out():
        yield


@functools.cache
def code() -> bytes:
    """Hash of micronpu's own modules, since any line may change a result."""
    digest = hashlib.sha256(platform.python_version().encode())
    root = Path(__file__).resolve().parents[1]
    for path in sorted(root.rglob("*.py")):
        data = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(data)}\0".encode() + data)
    return digest.digest()


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


def foreign(status: os.stat_result, *, is_folder: bool, trusted: Collection[int] = ()) -> str:
    """Reason why another user, except trusted ones, may have made a file or folder, as a clause; "" if none could."""
    if not (stat.S_ISDIR(status.st_mode) if is_folder else stat.S_ISREG(status.st_mode)):
        return "is no folder" if is_folder else "is no regular file"
    if sys.platform == "win32":
        return ""
    if status.st_uid not in (os.getuid(), *trusted):
        return f"belongs to another user (number {status.st_uid})"
    if status.st_mode & 0o022:
        return f"can be written to by others (mode {stat.S_IMODE(status.st_mode):o})"
    return ""


class _NoKeyError(Exception):
    """A value has no unambiguous serialization."""


Update: TypeAlias = Callable[[bytes | memoryview], object]
"""Takes bytes of what is hashed."""


def _feed(update: Update, value: Any) -> None:
    """Add a value to a hash; different values give different hashes."""
    if value is None or isinstance(value, (bool, Enum)):
        _add(update, f"{type(value).__qualname__}.{value!r}" if not isinstance(value, Enum) else _named(value), b"")
    elif isinstance(value, (int, float, str)):
        _add(update, type(value).__name__, (value.hex() if isinstance(value, float) else str(value)).encode())
    elif isinstance(value, (bytes, memoryview, bytearray)):
        _add(update, "bytes", bytes(value))
    elif isinstance(value, (tuple, list)):
        _feed_items(update, value)
    elif isinstance(value, (set, frozenset)):
        _feed(update, ("set", *sorted(value, key=repr)))
    elif isinstance(value, Mapping):
        _feed(update, ("mapping", *((key, value[key]) for key in value)))
    elif is_dataclass(value) and not isinstance(value, type):
        kind = type(value)
        _add(update, f"{kind.__module__}.{kind.__qualname__}", b"")
        for field in fields(value):
            _feed(update, getattr(value, field.name))
    elif hasattr(value, "dtype") and hasattr(value, "tobytes") and value.dtype.kind in "biuf":  # NumPy's
        as_it_lies = value.flags.c_contiguous and value.size  # without a copy
        data = value.reshape(-1).view("u1") if as_it_lies else value.tobytes()
        _add(update, f"{value.dtype.str}{value.shape}", data)
    else:
        raise _NoKeyError


def _feed_items(update: Update, value: Sequence[Any]) -> None:
    """Add a tuple or list to a hash; a list of numbers is added at once."""
    kinds = set(map(type, value))
    _add(update, f"{type(value).__name__} of {len(value)}", b"")
    if kinds == {float}:
        _add(update, "floats", array("d", value).tobytes())
    elif kinds == {int} and max(value) < 2**63 and min(value) >= -(2**63):
        _add(update, "ints", array("q", value).tobytes())
    else:
        for item in value:
            _feed(update, item)


def in_short(value: object) -> object:
    """Return the hash of a value that is an input of many entries; the value itself if it has none."""
    digest = hashlib.sha256()
    try:
        _feed(digest.update, value)
    except _NoKeyError:
        return value
    return digest.digest()


def _named(value: Enum) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}.{value.name}"


def _add(update: Update, kind: str, data: bytes | memoryview) -> None:
    text = kind.encode()
    update(len(text).to_bytes(4, "little") + text + len(data).to_bytes(8, "little"))
    update(data)
