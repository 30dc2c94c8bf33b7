"""Licences of the files of a folder, and atomic writing of it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from micronpu.base.errors import FileError
from micronpu.base.files import check_folder
from micronpu.base.leaving import scratch_folder, undone

_AT_CURRENT_FOLDER, _EXCHANGE = -100, 2  # of Linux' `renameat2`


LICENSE = "LICENSE"
_SPDX = "SPDX-License-Identifier: BSD-3-Clause"
_COMMENTS = {
    **dict.fromkeys((".S", ".c", ".cpp", ".h", ".hpp", ".ld", ".overlay"), f"/* {_SPDX} */\n"),
    **dict.fromkeys((".cmake", ".conf", ".sh", ".txt", ".yaml", ".yml", ""), f"# {_SPDX}\n"),
    ".md": f"<!-- {_SPDX} -->\n",
}
"""The line that states the licence of a file, by its suffix; programs and vectors are the user's."""


def licensed(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files of a folder, sorted, each text with the identifier of its licence, and with the licence."""
    made = {LICENSE: (metadata.distribution("micronpu").read_text(f"licenses/{LICENSE}") or _SPDX).encode()}
    for name, data in files.items():
        line = _COMMENTS.get(Path(name).suffix, "").encode()
        first, newline, rest = data.partition(b"\n")
        if data.startswith(b"#!"):
            made[name] = first + newline + line + rest
        else:
            made[name] = data + line if name.endswith(".md") else line + data
    return dict(sorted(made.items()))


def check_target(folder: Path, *, force: bool) -> None:
    """Refuse early what `write_folder` would refuse after the work is done."""
    what = f"{folder} cannot be written"
    if folder.exists() and not folder.is_dir():
        raise FileError(f"{what}: it is a file, not a folder.", hint="another folder")
    if folder.is_dir():
        check_folder(folder, what)
        if any(folder.iterdir()) and not force:
            raise FileError(
                f"{folder} holds files already, and nothing is overwritten.",
                hint="another folder, or --force (force=True), which replaces files of the same names and "
                "leaves others",
            )
    # The folder itself is replaced, in its parent.
    target = Path(os.path.realpath(folder))
    check_folder(target.parent, what)
    if target.is_dir() and (target.is_mount() or target in (here := Path.cwd().resolve(), *here.parents)):
        raise FileError(
            f"{what}: the folder is replaced as a whole, and the command runs in it, or it is a mount point.",
            hint=f"a new folder in it, {folder / 'model'}",
        )


def write_folder(folder: Path, files: Mapping[str, bytes], *, force: bool = False) -> None:
    """Write files into a new or empty folder, all of them or none; with ``force`` into one with files.

    A folder with files is replaced in one step by a folder with the new files and the old ones of other names, which
    remain the same files.  Readers see the old or the new folder, even after a crash.
    """
    check_target(folder, force=force)
    target = Path(os.path.realpath(folder))
    try:
        with scratch_folder(f".{target.name}.", target.parent) as scratch:
            new = scratch / "new"
            new.mkdir()  # with the user's mode; `scratch` has a private one
            if target.is_dir():
                _link(target, new, set(files))
            for name, data in files.items():
                path = new / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
            if target.is_dir():
                shutil.copystat(target, new)
                _exchange(new, target)
            else:
                os.replace(new, target)
    except OSError as error:
        raise FileError(
            f"{folder} cannot be written: {error.strerror or error}.", hint="another folder, or make room"
        ) from error


def _link(old: Path, new: Path, without: set[str]) -> None:
    """Hard-link all files of one folder into another, except those of some names."""
    for place, folders, names in os.walk(old):
        inside = Path(place).relative_to(old)
        for name in [n for n in folders if (Path(place) / n).is_symlink()]:
            names.append(name)
        for name in set(folders) - set(names):
            (new / inside / name).mkdir()
            shutil.copystat(Path(place) / name, new / inside / name)
        for name in names:
            if (inside / name).as_posix() not in without:
                os.link(Path(place) / name, new / inside / name, follow_symlinks=False)


def _exchange(new: Path, old: Path) -> None:
    """Exchange the names of two folders in one step, or in two if the system has no such call."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        with contextlib.suppress(AttributeError):  # a C library without the call
            names = os.fsencode(new), os.fsencode(old)
            if not libc.renameat2(_AT_CURRENT_FOLDER, names[0], _AT_CURRENT_FOLDER, names[1], _EXCHANGE):
                return
    aside = new.with_name("old")

    def back() -> None:
        if not old.exists():
            os.rename(aside, old)

    with undone(back):
        os.rename(old, aside)
        try:
            os.rename(new, old)
        except OSError:
            back()
            raise
