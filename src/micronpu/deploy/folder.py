"""A folder that appears whole, or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from micronpu.base.errors import FileError
from micronpu.base.files import check_folder


def check_target(folder: Path, *, force: bool) -> None:
    """Refuses early what `write_folder` would refuse after the work is done.

    Raises:
        FileError: it is a file, holds files, or cannot be made.
    """
    if folder.exists() and not folder.is_dir():
        raise FileError(f"{folder} cannot be written: it is a file, not a folder.", hint="another folder")
    if folder.is_dir():
        check_folder(folder, f"{folder} cannot be written")
        if any(folder.iterdir()) and not force:
            raise FileError(
                f"{folder} holds files already, and nothing is overwritten.",
                hint="another folder, or --force (force=True), which replaces files of the same names and "
                "leaves others",
            )
    else:
        check_folder(folder.absolute().parent, f"{folder} cannot be written")


def write_folder(folder: Path, files: Mapping[str, bytes], *, force: bool = False) -> None:
    """Writes files into a folder that is new or empty, all of them or none; with ``force`` into one with files.

    Into a folder with files each of ours takes the place of one with its name once all are on the disk.

    Raises:
        FileError: see `check_target`, or the disk does not take them.
    """
    check_target(folder, force=force)
    target = folder.absolute()
    try:
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            for name, data in files.items():
                path = scratch / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
            if target.is_dir() and any(target.iterdir()):
                for name in files:
                    (target / name).parent.mkdir(parents=True, exist_ok=True)
                    os.replace(scratch / name, target / name)
            else:
                scratch.chmod(0o777 & ~_umask())
                os.replace(scratch, target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        raise FileError(
            f"{folder} cannot be written: {error.strerror or error}.", hint="another folder, or make room"
        ) from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
