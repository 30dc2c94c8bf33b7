"""Answers on disk: found again, never from somebody else, never half, never too many."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
import warnings
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from micronpu.base import cache as cache_module
from micronpu.base.cache import FOLDER, Cache, CacheWarning

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="owners and modes are those of POSIX")


class Colour(Enum):
    RED = 1
    BLUE = 2


class Shade(Enum):
    RED = 1


@dataclass(frozen=True)
class Size:
    height: int
    width: int


@dataclass(frozen=True)
class Place:
    height: int
    width: int


DIFFERENT: tuple[Any, ...] = (
    None,
    False,
    True,
    0,
    1,
    1.0,
    1.0000000000000002,
    "1",
    b"1",
    (),
    (1,),
    [1],
    (1, 1),
    ((1,), 1),
    (1, (1,)),
    (1.0,),
    (2**70,),
    (True,),
    {1},
    {"a": 1},
    {"b": 1},
    Colour.RED,
    Colour.BLUE,
    Shade.RED,
    Size(1, 1),
    Place(1, 1),
    np.array([1], np.int8),
    np.array([1], np.uint8),
    np.array([[1]], np.int8),
    np.array([2], np.int8),
)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "answers")


def files(cache: Cache) -> list[Path]:
    assert cache.folder is not None
    return sorted(cache.folder.iterdir())


def test_an_answer_is_found_again_by_another_process(cache: Cache) -> None:
    entry = cache.entry("kind", (), 1, "two")
    assert entry.read() is None
    entry.write(b"answer")
    again = Cache(cache.folder)
    assert again.entry("kind", (), 1, "two").read() == b"answer"
    assert again.entry("other", (), 1, "two").read() is None
    assert again.entry("kind", (), 1, "three").read() is None
    assert (again.hits, again.misses) == (1, 2)


def test_whatever_differs_has_a_name_of_its_own(cache: Cache) -> None:
    names = [cache.entry("kind", (), value).name for value in DIFFERENT]
    assert len(set(names)) == len(names) and all(names)
    assert names == [cache.entry("kind", (), value).name for value in DIFFERENT]


def test_names_depend_on_tools_and_on_our_own_code(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    before = cache.entry("kind", ("numpy",), 1).name
    with monkeypatch.context() as patch:
        patch.setattr(cache_module, "installed", lambda package: "another")
        assert cache.entry("kind", ("numpy",), 1).name != before
    monkeypatch.setattr(cache_module, "code", lambda: b"another")
    assert cache.entry("kind", ("numpy",), 1).name != before


def test_the_hash_of_our_own_code_knows_every_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "micronpu"
    (package / "base").mkdir(parents=True)
    (package / "base" / "cache.py").write_text("pass")
    (package / "other.py").write_text("x = 1")
    monkeypatch.setattr(cache_module, "__file__", str(package / "base" / "cache.py"))
    first = cache_module.code.__wrapped__()
    (package / "other.py").write_text("x = 2")
    assert cache_module.code.__wrapped__() != first


def test_a_value_without_a_name_is_not_kept(cache: Cache) -> None:
    entry = cache.entry("kind", (), object())
    entry.write(b"answer")
    assert entry.read() is None and not files(cache)


def test_only_the_user_can_read_what_is_kept(cache: Cache) -> None:
    cache.entry("kind", (), 1).write(b"answer")
    assert cache.folder is not None
    assert cache.folder.stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_mode & 0o777 for path in files(cache)] == [0o600]


@pytest.mark.parametrize("spoil", ["cut", "flipped", "empty", "moved"])
def test_a_damaged_answer_is_left_aside_and_said_once(cache: Cache, spoil: str) -> None:
    entries = [cache.entry("kind", (), i) for i in range(2)]
    for entry in entries:
        entry.write(b"answer" * 10 + entry.name.encode())
    first, second = (cache.folder / f"{entry.name}.answer" for entry in entries)  # type: ignore[operator]
    if spoil == "moved":  # whole, but the answer to another question
        data = first.read_bytes(), second.read_bytes()
        first.write_bytes(data[1])
        second.write_bytes(data[0])
    else:
        for path in (first, second):
            data = path.read_bytes()
            changed = {"cut": data[:-1], "empty": b"", "flipped": data[:-3] + bytes((data[-3] ^ 1,)) + data[-2:]}
            path.write_bytes(changed[spoil])
    with warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("always")
        assert [entry.read() for entry in entries] == [None, None]
    assert [w.category for w in reported] == [CacheWarning] and "damaged" in str(reported[0].message)
    entries[0].write(b"anew")
    assert entries[0].read() == b"anew"


def test_an_answer_that_others_could_have_written_is_left_aside(cache: Cache, tmp_path: Path) -> None:
    entry = cache.entry("kind", (), 1)
    entry.write(b"answer")
    (path,) = files(cache)
    path.chmod(0o622)
    with pytest.warns(CacheWarning, match="can be written to by others"):
        assert entry.read() is None
    path.chmod(0o600)
    assert entry.read() == b"answer"
    elsewhere = path.rename(tmp_path / "elsewhere")
    path.symlink_to(elsewhere)
    with pytest.warns(CacheWarning, match="cannot be read"):
        assert entry.read() is None


def test_a_folder_that_others_can_write_to_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    cache = Cache(folder)
    with pytest.warns(CacheWarning, match="can be written to by others"):
        entry = cache.entry("kind", (), 1)
    entry.write(b"answer")
    assert entry.read() is None and not list(folder.iterdir())


def test_a_file_in_the_place_of_the_folder_is_no_cache(tmp_path: Path) -> None:
    (tmp_path / "answers").write_text("")
    cache = Cache(tmp_path / "answers")
    with pytest.warns(CacheWarning, match="The cache cannot write to"):
        assert cache.entry("kind", (), 1).read() is None


def test_a_full_disk_is_said_once_and_nothing_is_left_behind(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    first = cache.entry("kind", (), 0)
    first.write(b"answer")
    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(CacheWarning, match="No space left") as reported:
        for i in range(1, 4):
            cache.entry("kind", (), i).write(b"answer")
    assert len(reported) == 1 and len(files(cache)) == 1
    assert first.read() == b"answer"


def test_what_was_not_used_for_longest_goes(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    entries = [cache.entry("kind", (), i) for i in range(4)]
    for age, entry in enumerate(entries):
        entry.write(bytes(300))
        os.utime(tmp_path / f"{entry.name}.answer", (1000 + age, 1000 + age))
    assert entries[0].read() == bytes(300)  # used now
    Cache(tmp_path, most_bytes=1000).prune()
    assert [entry.read() is not None for entry in entries] == [True, False, False, True]
    few = Cache(tmp_path, most_entries=1)
    few.prune()
    assert few.usage().entries == 1


def test_the_size_is_held_while_answers_are_kept(tmp_path: Path) -> None:
    cache = Cache(tmp_path, most_bytes=5 * 2**20)
    for i in range(12):
        cache.entry("kind", (), i).write(bytes(2**20))
        assert cache.usage().bytes <= 5 * 2**20
    cache.entry("kind", (), "larger than all").write(bytes(6 * 2**20))
    assert cache.usage().entries == 4


def test_a_full_cache_is_looked_through_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tmp_path, most_bytes=64 * 2**20)
    looked: list[float] = []
    monkeypatch.setattr(cache, "prune", looked.append)
    for i in range(64):  # names as evenly spread as those of many entries
        cache.write(tmp_path, f"{i * 2**26:08x}", bytes(2**18))
    assert len(looked) == 5  # 16 MiB of 64, each sixteenth part of which asks for one on the average
    cache.entry("kind", (), "a sixteenth").write(bytes(4 * 2**20))
    assert len(looked) == 6 and looked[-1] == 15 / 16


def test_unfinished_files_of_processes_that_were_killed_go(cache: Cache) -> None:
    cache.entry("kind", (), 1).write(b"answer")
    assert cache.folder is not None
    old, new = cache.folder / "old.tmp", cache.folder / "new.tmp"
    for path in (old, new):
        path.write_text("half")
    os.utime(old, (1000, 1000))
    cache.prune()
    assert new.exists() and not old.exists()


def test_the_environment_names_a_folder_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache()
    for off in ("off", "OFF", "0", "no"):
        monkeypatch.setenv(FOLDER, off)
        assert cache.folder is None and cache.usage().why == f"{FOLDER} says so"
    monkeypatch.setenv(FOLDER, str(tmp_path / "mine"))
    assert cache.folder == tmp_path / "mine"
    with cache.left_out():
        entry = cache.entry("kind", (), 1)
        entry.write(b"answer")
        assert entry.read() is None
    assert not (tmp_path / "mine").exists()
    monkeypatch.delenv(FOLDER)
    monkeypatch.setenv("MICRONPU_CACHE_DIR", str(tmp_path / "all"))
    assert cache.folder == tmp_path / "all" / "answers"


def test_clearing_leaves_what_is_not_ours(cache: Cache) -> None:
    cache.entry("kind", (), 1).write(b"answer")
    assert cache.folder is not None
    (cache.folder / "letter.txt").write_text("mine")
    cleared = cache.clear()
    assert cleared.entries == 1 and cleared.bytes > 0
    assert [path.name for path in files(cache)] == ["letter.txt"]


def test_many_processes_read_and_write_whole_answers(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from micronpu.base.cache import Cache
        cache = Cache(Path(sys.argv[1]), most_bytes=40_000)
        for turn in range(300):
            entry = cache.entry("kind", (), turn % 7)
            found = entry.read()
            assert found is None or found == bytes([turn % 7]) * 9000, turn
            entry.write(bytes([turn % 7]) * 9000)
            if turn % 5 == 0:
                cache.prune()
        """
    )
    command = [sys.executable, "-W", "error", "-c", script, str(tmp_path / "answers")]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(4)]
    assert [process.communicate()[1] for process in processes] == [b""] * 4
    assert [process.returncode for process in processes] == [0] * 4


@pytest.mark.parametrize("name", ["HOME", "XDG_CACHE_HOME"])
@pytest.mark.parametrize("value", ["", ".", "relative/place"])
def test_nothing_is_kept_in_the_current_folder(
    name: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for other in ("MICRONPU_CACHE_DIR", "XDG_CACHE_HOME", FOLDER):
        monkeypatch.delenv(other, raising=False)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv(name, value)
    expected = None if name == "HOME" else tmp_path / ".cache/micronpu"
    assert cache_module.user_folder() == expected
    Cache().entry("kind", (), 1).write(b"answer")
    assert not list(Path().iterdir())
