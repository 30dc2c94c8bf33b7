"""Programs that build a deployed folder, and how to install them."""

from __future__ import annotations

import shutil
import subprocess
import sys

COMPILER = "arm-none-eabi-g++"
PACKAGES = {
    "cmake": ("cmake", "cmake"),
    "ninja": ("ninja-build", "ninja"),
    COMPILER: ("gcc-arm-none-eabi libstdc++-arm-none-eabi-newlib", "--cask gcc-arm-embedded"),
}
"""Programs that a build runs, each with its packages of Debian and of Homebrew."""


def has_library(compiler: str) -> bool:
    """Return True if a compiler for Cortex-M finds the headers of its library, which Debian packages apart."""
    language, headers = ("c++", ("atomic", "cstdint")) if compiler == COMPILER else ("c", ("stdint.h", "stdio.h"))
    source = "".join(f"#include <{name}>\n" for name in headers)
    command = [compiler, "-fsyntax-only", "-x", language, "-"]
    try:
        return subprocess.run(command, input=source.encode(), capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def missing_tools() -> dict[str, str]:
    """Return the programs of a build that are not usable, each with the command that installs what is missing.

    A compiler without its C++ library counts as missing.
    """
    command, column = ("brew install", 1) if sys.platform == "darwin" else ("apt-get install", 0)
    return {
        name: f"{command} {names[column]}"
        for name, names in PACKAGES.items()
        if shutil.which(name) is None or (name == COMPILER and not has_library(name))
    }
