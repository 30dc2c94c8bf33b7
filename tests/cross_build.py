"""Compiles the native code for other processors and systems: `python -m tests.cross_build aarch64-linux macos-arm64`.

Every file with the flags of the package and with warnings as errors. The simulators, which need nothing else, are
linked as well; the plug-in is linked against the ExecuTorch of the machine that it is for, and stays object files here.
Nothing is run.  A compiler that is not there is told, and is no failure.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import util
from pathlib import Path

from micronpu.host import build

ZIG = (sys.executable, "-m", "ziglang", "c++")
COMPILERS: dict[str, tuple[tuple[str, ...], str]] = {
    "aarch64-linux": (("aarch64-linux-gnu-g++",), "apt install g++-aarch64-linux-gnu"),
    "aarch64-linux-zig": ((*ZIG, "-target", "aarch64-linux-gnu.2.28"), "pip install ziglang"),
    "macos-arm64": ((*ZIG, "-target", "aarch64-macos"), "pip install ziglang"),
}
"""Command of each, and how to get it."""


def is_there(compiler: Sequence[str]) -> bool:
    return util.find_spec("ziglang") is not None if compiler[:4] == ZIG else shutil.which(compiler[0]) is not None


def built(compiler: Sequence[str], folder: Path) -> str:
    """Compiles and links all; what was made, as a clause.

    Raises:
        subprocess.CalledProcessError: the compiler refuses something, or warns.
    """
    sources, wheel = build.source_directory(), build.find_executorch()
    jobs = {folder / "plugin": (sources, (*build._FLAGS, *wheel.include_flags))}
    jobs |= {folder / own.name: (own, build._SIMULATOR_FLAGS) for own in build._simulators(sources)}
    count, linked = 0, []
    for place, (directory, flags) in jobs.items():
        place.mkdir()
        objects = []
        for source in sorted(directory.glob("*.cpp")):
            made = place / f"{source.stem}.o"
            subprocess.run([*compiler, *flags, "-Werror", "-c", str(source), "-o", str(made)], check=True)
            objects.append(str(made))
        count += len(objects)
        if directory != sources:
            library = place / f"lib{place.name}.so"
            subprocess.run([*compiler, "-shared", *objects, "-o", str(library)], check=True)
            linked.append(f"{library.name} of {library.stat().st_size:,} bytes")
    return f"{count} files without a warning, {', '.join(linked)} linked"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("systems", nargs="*", default=list(COMPILERS), help=f"of {', '.join(COMPILERS)}")
    failed = False
    for system in parser.parse_args().systems:
        compiler, remedy = COMPILERS[system]
        if not is_there(compiler):
            print(f"{system}: not built, for there is no {' '.join(compiler[-3:])}. Try: {remedy}.", flush=True)
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                print(f"{system}: {built(compiler, Path(folder))}", flush=True)
            except subprocess.CalledProcessError as error:
                failed = True
                print(f"{system}: FAILED, {' '.join(map(str, error.cmd))}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
