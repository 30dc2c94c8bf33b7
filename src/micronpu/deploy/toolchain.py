"""Programs that build a deployed folder, and how to install them."""

from __future__ import annotations

import shutil
import sys

PACKAGES = {
    "cmake": ("cmake", "cmake"),
    "ninja": ("ninja-build", "ninja"),
    "arm-none-eabi-g++": ("gcc-arm-none-eabi libstdc++-arm-none-eabi-newlib", "--cask gcc-arm-embedded"),
}
"""Programs that a build runs, each with its packages of Debian and of Homebrew."""


def missing_tools() -> dict[str, str]:
    """Return the programs of a build that are not installed, each with the command that installs it."""
    command, column = ("brew install", 1) if sys.platform == "darwin" else ("apt-get install", 0)
    return {name: f"{command} {names[column]}" for name, names in PACKAGES.items() if shutil.which(name) is None}
