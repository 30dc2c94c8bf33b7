"""Files are written whole or not at all, and into nobody's trap."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from micronpu.base import files
from micronpu.base.errors import FileError, MicroNpuError
from micronpu.base.files import check_name, read_file, write_file
from micronpu.chips import load_chip
from micronpu.report.delegation import DelegationReport
from micronpu.report.manifest import Manifest
from micronpu.runtime.program import HostProgram


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_the_temporary_name_cannot_be_guessed_and_is_made_new(tmp_path, monkeypatch):
    """A link that somebody put in its place is an error, and what it points at stays."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    seen = []
    monkeypatch.setattr(files.secrets, "token_hex", lambda n: seen.append(n) or "known")
    (tmp_path / ".micronpu-known.tmp").symlink_to(victim)
    with pytest.raises(FileError, match="cannot be written: File exists"):
        write_file(tmp_path / "a.pte", b"new")
    assert victim.read_bytes() == b"precious"
    assert seen == [16]
    assert names(tmp_path) == [".micronpu-known.tmp", "victim"], "what was there before stays"


def test_the_mode_is_kept_and_a_new_file_gets_the_users(tmp_path):
    old = tmp_path / "old"
    old.write_bytes(b"1")
    old.chmod(0o640)
    write_file(old, b"2")
    assert old.stat().st_mode & 0o777 == 0o640
    before = os.umask(0o027)
    try:
        write_file(tmp_path / "new", b"1")
    finally:
        os.umask(before)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o640


def test_a_link_of_another_user_is_not_followed(tmp_path, monkeypatch):
    (tmp_path / "target").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    owner = (tmp_path / "link").lstat().st_uid
    if owner == 0:  # the tests run as the administrator, whose links are trusted
        monkeypatch.setattr(files, "_ADMINISTRATOR", 54321)
    with pytest.raises(FileError, match=f"a link that another user .number {owner}. made"):
        write_file(tmp_path / "link", b"new")
    assert (tmp_path / "target").read_bytes() == b"old"


def test_two_writers_at_once_leave_one_whole_file(tmp_path):
    path = tmp_path / "a"
    contents = [bytes([letter]) * 500_000 for letter in b"abcd"]
    start = threading.Barrier(len(contents))
    failures = []

    def write(data: bytes) -> None:
        start.wait()
        try:
            for _ in range(10):
                write_file(path, data)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(data,)) for data in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert path.read_bytes() in contents
    assert names(tmp_path) == ["a"]


def test_names_up_to_what_the_file_system_takes(tmp_path):
    for name in ("a" * 250, "ä" * 125, "a" * 255):
        write_file(tmp_path / name, b"x")
        assert read_file(tmp_path / name) == b"x"


@pytest.mark.parametrize(("name", "sentence"), [("a\0b", "NUL"), ("a" * 256, "too long"), ("\ud800", "encoded")])
def test_names_that_no_file_has(tmp_path, name, sentence):
    for use in (check_name, read_file, lambda path: write_file(path, b"")):
        with pytest.raises(FileError, match=sentence):
            use(tmp_path / name)
    assert names(tmp_path) == []


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with names are of POSIX")
@pytest.mark.parametrize("kind", ["pipe", "/dev/zero", "folder"])
@pytest.mark.parametrize("read", [read_file, load_chip, HostProgram, Manifest.load, DelegationReport.load])
def test_what_is_no_file_is_not_read(tmp_path, kind, read):
    path = Path(kind) if kind.startswith("/") else tmp_path / "a"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    with pytest.raises(MicroNpuError, match=r"no regular file|is a folder|There is no|Is a directory"):
        read(path)


@pytest.mark.skipif(not Path("/proc/kmsg").exists(), reason="files without an end are of Linux")
def test_no_more_is_read_than_a_file_has(tmp_path):
    """`/proc/kmsg` is a regular file of 0 bytes, and never ends."""
    for endless in (Path("/proc/kmsg"), Path("/proc/version")):
        with contextlib.suppress(FileError):  # without permission
            assert read_file(endless) == b""


def test_a_limit_of_the_file_size_leaves_the_old_file(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "from micronpu.base.files import write_file; from micronpu.base.errors import FileError\n"
        "try: write_file(sys.argv[1], bytes(5000))\n"
        "except FileError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert "cannot be written: File too large. Try: another folder, or make room" in done.stdout
    assert path.read_bytes() == b"old" and names(tmp_path) == ["a"]
