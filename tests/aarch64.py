"""Runs the golden programs on an emulated aarch64: `python -m tests.aarch64`.

Those that need neither torch nor LiteRT, in the user-mode emulator of QEMU: Python and its libraries are Debian's for
arm64, NumPy and ExecuTorch their wheels, the plug-in and the simulator are compiled here by a cross compiler.  Nothing
of it is installed; all lies in `build/aarch64`, where a second run finds it.  What is missing is said, with exit code
0, unless `CI` is set; so is what cannot be fetched, unless at GitHub, where everything can.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from micronpu.host import build

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / "build" / "aarch64"
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64-static"
KINDS = ("cortexm", "ethosu-litert", "ethosu-tosa")
"""Golden programs whose parts run in native code alone."""
PYTHON = "3.11"
DEBIAN = f"""python{PYTHON}-minimal libpython{PYTHON}-minimal libpython{PYTHON}-stdlib libc6 libstdc++6 libgcc-s1
libexpat1 zlib1g libffi8 libssl3 libbz2-1.0 liblzma5 libuuid1 libgomp1""".split()
WHEELS = ("numpy", "executorch", "flatbuffers", "typing_extensions", "rich")
RUN = """
import sys
from pathlib import Path
import numpy as np
from micronpu.runtime import ArrayProgram

for kind in sys.argv[2:]:
    arrays = np.load(Path(sys.argv[1]) / f"{kind}.npz")
    with ArrayProgram(Path(sys.argv[1]) / f"{kind}.pte") as program:
        got = program.run_arrays(*(arrays[n] for n in arrays.files if n.startswith("input")))
    wanted = [arrays[n] for n in arrays.files if n.startswith("output")]
    assert len(got) == len(wanted) and all(map(np.array_equal, got, wanted)), f"{kind}: other integers"
    print(f"{kind}: the golden integers", flush=True)
assert "torch" not in sys.modules
"""


def missing() -> str:
    """What this machine lacks, as a clause; "" for nothing."""
    needed = {COMPILER: "g++-aarch64-linux-gnu", EMULATOR: "qemu-user-static", "apt-get": "apt", "dpkg-deb": "dpkg"}
    lacking = [package for command, package in needed.items() if shutil.which(command) is None]
    return f"apt install {' '.join(lacking)}" if lacking else ""


def debian(root: Path) -> None:
    """Unpacks Debian's packages for arm64 into a folder; the machine's own apt learns nothing of that architecture."""
    state, debs = root.parent / "apt", root.parent / "debs"
    for folder in (state / "lists" / "partial", state / "archives" / "partial", debs, root):
        folder.mkdir(parents=True, exist_ok=True)
    (state / "status").touch()
    signed = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
    (state / "sources").write_text(f"deb {signed} http://deb.debian.org/debian bookworm main\n")
    settings = {
        "Dir::State": state, "Dir::State::lists": state / "lists", "Dir::State::status": state / "status",
        "Dir::Cache": state, "Dir::Cache::archives": state / "archives", "Dir::Etc::sourcelist": state / "sources",
        "Dir::Etc::sourceparts": "-", "APT::Architecture": "arm64", "APT::Sandbox::User": "root",
    }  # fmt: skip
    lines = [f'{name} "{value}";' for name, value in settings.items()]
    (state / "conf").write_text("\n".join([*lines, 'APT::Architectures { "arm64"; };']) + "\n")
    environment = {**os.environ, "APT_CONFIG": str(state / "conf")}
    subprocess.run(["apt-get", "update", "-qq"], check=True, env=environment)
    subprocess.run(["apt-get", "download", "-qq", *DEBIAN], check=True, env=environment, cwd=debs)
    for deb in debs.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", str(deb), str(root)], check=True)


def wheels(site: Path) -> None:
    """Unpacks the versions that are installed here, for the other processor, and micronpu beside them."""
    fetched = site.parent / "wheels"
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "--only-binary=:all:",
        "--dest",
        str(fetched),
    ]
    command += ["--python-version", PYTHON.replace(".", ""), "--implementation", "cp"]
    for glibc in ("2_28", "2_27", "2_17"):
        command += ["--platform", f"manylinux_{glibc}_aarch64"]
    subprocess.run([*command, *(f"{name}=={metadata.version(name)}" for name in WHEELS)], check=True)
    for wheel in fetched.glob("*.whl"):
        zipfile.ZipFile(wheel).extractall(site)


def native(site: Path) -> None:
    """Compiles the plug-in and the simulator against the ExecuTorch of the other processor, as for a wheel."""
    shutil.rmtree(site / "micronpu", ignore_errors=True)
    shutil.copytree(ROOT / "src" / "micronpu", site / "micronpu", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "native", site / "micronpu" / "_native")
    folder = site / "micronpu" / "_native" / build.PREBUILT
    folder.mkdir()
    program = (
        "import pathlib, sys; from micronpu.host import build; site = pathlib.Path(sys.argv[1]);"
        "build.find_executorch = lambda: build.ExecuTorchWheel(site / 'executorch', sys.argv[2]);"
        "build.make_prebuilt(pathlib.Path(sys.argv[3]))"
    )
    command = [sys.executable, "-c", program, str(site), metadata.version("executorch"), str(folder)]
    subprocess.run(command, check=True, env={**os.environ, "CXX": COMPILER})
    reported = json.loads((folder / build.PREBUILT_MANIFEST).read_text())
    (folder / build.PREBUILT_MANIFEST).write_text(json.dumps(reported | {"platform": "linux-aarch64"}))


def run(kinds: Sequence[str]) -> int:
    """The exit code of the emulated process."""
    root, site = PLACE / "root", PLACE / "site"
    try:
        if not (root / "usr" / "bin" / f"python{PYTHON}").exists():
            debian(root)
        if not (site / "numpy").is_dir():
            wheels(site)
    except subprocess.CalledProcessError as error:
        print(f"Not run on aarch64: `{error.cmd[0]}` could not fetch what Debian or PyPI has for it.")
        return int("GITHUB_ACTIONS" in os.environ)
    native(site)
    environment = {"PYTHONPATH": str(site), "HOME": str(PLACE), "PATH": os.environ["PATH"]}
    python = [EMULATOR, "-L", str(root), str(root / "usr" / "bin" / f"python{PYTHON}")]
    command = [*python, "-c", RUN, str(ROOT / "tests" / "golden"), *kinds]
    return subprocess.run(command, env=environment, cwd=PLACE, timeout=900).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("kinds", nargs="*", help=f"of {', '.join(KINDS)}")
    kinds = parser.parse_args().kinds or KINDS
    if remedy := missing():
        print(f"Not run on aarch64. Try: {remedy}.")
        return int("CI" in os.environ)
    return run(kinds)


if __name__ == "__main__":
    sys.exit(main())
