"""Programs that a machine may lack: a test that runs one calls `need` first, and is skipped with its Debian package.

`python -m tests.tools bare FOLDER` fills a folder with links to every program of PATH but these, and `freestanding`
with compilers for Cortex-M beside them that have no C library: PATHs of machines on which `make test` has to pass.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.layers import SOURCE

PACKAGES = {
    "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
    "arm-none-eabi-g++": "gcc-arm-none-eabi libstdc++-arm-none-eabi-newlib",
    "arm-none-eabi-gcc": "gcc-arm-none-eabi libnewlib-arm-none-eabi",
    "chromedriver": "chromium-driver",
    "chromium": "chromium",
    "clang": "clang",
    "cmake": "cmake",
    "cppcheck": "cppcheck",
    "g++": "g++",
    "gcc": "gcc",
    "gdb": "gdb",
    "gdb-multiarch": "gdb-multiarch",
    "ninja": "ninja-build",
    "nm": "binutils",
    "qemu-aarch64-static": "qemu-user-static",
    "qemu-system-arm": "qemu-system-arm",
}
"""The Debian packages of each program."""

_PREFIXES = ("aarch64-linux-gnu-", "arm-none-eabi-", "chrom", "clang", "cmake", "cppcheck", "gdb", "ninja", "qemu-")
"""Beginnings of the names of programs that a bare machine lacks."""

CROSS = "arm-none-eabi-"


def main_of(tool: str) -> str:
    """Return the program that a package is known by: gcc, for the others of the cross compiler."""
    return f"{CROSS}gcc" if tool.startswith(CROSS) and tool not in PACKAGES else tool


def is_there(tool: str) -> bool:
    """Return True if a program is installed; a compiler for Cortex-M only with its library."""
    from micronpu.deploy.toolchain import has_library

    return shutil.which(tool) is not None and (tool != main_of(tool) or not tool.startswith(CROSS) or has_library(tool))


def need(*tools: str) -> None:
    """Skip a test where a program is missing; CI installs them all."""
    missing = [tool for tool in tools if not is_there(tool)]
    if missing:
        packages = " ".join(dict.fromkeys(" ".join(PACKAGES[main_of(tool)] for tool in missing).split()))
        pytest.skip(f"{', '.join(missing)} cannot be used: apt-get install {packages}")


@functools.cache
def packages_that_look_for_programs() -> set[str]:
    """Return the names of the packages of micronpu that do."""
    files = {path: path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")}
    return {path.relative_to(SOURCE).parts[0] for path, text in files.items() if "shutil.which" in text}


def may_lack(command: Sequence[str]) -> bool:
    """Return True for a program that a bare machine lacks, and for Python, make or a shell, which may start one.

    Python may not in a worker, which is isolated, nor where its code or module names no package that looks for one.
    """
    name = Path(command[0]).name
    if name.startswith("python"):
        is_seen = "-c" in command or any(word.startswith("micronpu.") for word in command)
        words = re.findall(r"\w+", " ".join(command)) if is_seen else packages_that_look_for_programs()
        return "-I" not in command and not packages_that_look_for_programs().isdisjoint(words)
    return name.startswith(("micronpu", *_PREFIXES)) or name in {"sh", "bash", "env", "make"}


def watch(found: Callable[[], None]) -> None:
    """Call a function whenever this process looks for or starts a program that a bare machine may lack."""

    def watched(function: Callable[..., Any], place: int) -> Callable[..., Any]:
        @functools.wraps(function)
        def watching(*args: Any, **kwargs: Any) -> Any:
            named = args[place] if len(args) > place else kwargs.get("args", kwargs.get("cmd"))
            command = named if isinstance(named, (list, tuple)) else [named]
            if kwargs.get("shell") or may_lack([*map(os.fsdecode, command)]):
                found()
            return function(*args, **kwargs)

        return watching

    for owner, name, place in ((shutil, "which", 0), (subprocess.Popen, "__init__", 1)):
        setattr(owner, name, watched(getattr(owner, name), place))


def write_path(folder: Path, *, freestanding: bool) -> None:
    """Fill a folder with links to the programs of PATH that a bare machine has."""
    folder.mkdir(parents=True, exist_ok=True)
    for place in os.get_exec_path():
        for path in Path(place).iterdir() if Path(place).is_dir() else ():
            if not path.name.startswith(_PREFIXES) and not (folder / path.name).is_symlink():
                (folder / path.name).symlink_to(path)
    for name in ("gcc", "g++") if freestanding else ():
        compiler = shutil.which(f"{CROSS}{name}")
        if compiler is None:
            raise SystemExit(f"there is no {CROSS}{name}: apt-get install {PACKAGES[f'{CROSS}{name}']}")
        command = [compiler, "-print-file-name=include"]
        own = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        script = folder / f"{CROSS}{name}"
        script.write_text(f'#!/bin/sh\nexec {compiler} -nostdinc -isystem {own} "$@"\n')
        script.chmod(0o755)


if __name__ == "__main__":
    write_path(Path(sys.argv[2]), freestanding=sys.argv[1] == "freestanding")
