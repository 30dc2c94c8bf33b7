"""Builds what `deploy` writes for Cortex-M with Debian's gcc, and runs it on QEMU's boards."""

from __future__ import annotations

import atexit
import functools
import hashlib
import importlib.util
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from micronpu.chips import core as machines
from micronpu.deploy import integration

PORT = Path(integration.__file__).parent / "port"
WARNINGS = (
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wpedantic",
    "-Wconversion",
    "-Wswitch-enum",
    "-O2",
    "-mthumb",
    "-ffunction-sections",
)
CORES = {
    "cortex-m3": ("-mcpu=cortex-m3",),
    "cortex-m4": ("-mcpu=cortex-m4", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16"),
    "cortex-m7": ("-mcpu=cortex-m7", "-mfloat-abi=hard", "-mfpu=fpv5-d16"),
    "cortex-m33": ("-mcpu=cortex-m33", "-mfloat-abi=hard", "-mfpu=fpv5-sp-d16"),
    "cortex-m55": ("-mcpu=cortex-m55", "-mfloat-abi=hard"),
    # The architecture of a Cortex-M85, whose name gcc knows from version 13 on.
    "cortex-m85": ("-march=armv8.1-m.main+mve.fp+fp.dp", "-mfloat-abi=hard"),
}
BOARDS = {"mps2-an505": "cortex-m33", "mps3-an547": "cortex-m55"}
MORE_BOARDS = {"mps2-an385": "cortex-m3", "mps2-an386": "cortex-m4", "mps2-an500": "cortex-m7"}


@functools.cache
def executorch_flags() -> tuple[str, ...]:
    """Flags for ExecuTorch's headers, whose own warnings are not ours."""
    spec = importlib.util.find_spec("executorch")
    assert spec is not None and spec.submodule_search_locations
    include = Path(next(iter(spec.submodule_search_locations))) / "include"
    c10 = include / "executorch" / "runtime" / "core" / "portable_type" / "c10"
    return ("-DC10_USING_CUSTOM_GENERATED_MACROS", "-isystem", str(include), "-isystem", str(c10))


@functools.cache
def kept() -> Path:
    """A folder for what several tests of this process use."""
    folder = Path(tempfile.mkdtemp(prefix="micronpu-builds-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _texts(path: Path, known: dict[str, str]) -> dict[str, str]:
    """The text of a source, and of the headers of its folder that it includes, by name."""
    known[path.name] = path.read_text()
    for name in re.findall(r'^ *# *include "([^"]+)"', known[path.name], re.MULTILINE):
        if name not in known and (path.parent / name).is_file():
            _texts(path.parent / name, known)
    return known


def object_of(source: Path, command: Sequence[str]) -> Path:
    """What a compiler makes of a source: once for all folders that have the same text, as most of two folders is.

    Args:
        command: the compiler and its flags, which name no folder of headers beside that of the source.
    """
    assert not any(word.startswith("-I") for word in command)
    made = kept() / (hashlib.sha256(repr((command, _texts(source, {}))).encode()).hexdigest() + ".o")
    if not made.exists():
        _run([*command, f"-I{source.parent}", "-c", str(source), "-o", str(made)])
    return made


def compile_source(source: Path, folder: Path, core: str, *more: str) -> Path:
    """Compiles a file without a warning, or fails with what the compiler said."""
    result = folder / f"{source.stem}.{source.suffix[1:]}.{core}.o"
    tool, standard = "arm-none-eabi-gcc", ["-std=c11"]
    if source.suffix == ".cpp":
        tool, standard = "arm-none-eabi-g++", ["-std=c++17", "-fno-exceptions", "-fno-rtti", "-Wuseless-cast"]
    elif source.suffix == ".S":
        standard = []
    command = [tool, *standard, *WARNINGS, *CORES[core]]
    if source.suffix == ".S" or any(word.startswith("-I") for word in more):  # reads other files as well
        _run([*command, f"-I{source.parent}", *more, "-c", str(source), "-o", str(result)])
    else:
        shutil.copyfile(object_of(source, [*command, *more]), result)
    return result


def link(objects: Sequence[Path], board: str, folder: Path, *more: str, resident: bool = False) -> Path:
    """A firmware for one of QEMU's boards, with more flags for its start-up; programs may be copied at its start."""
    core = (BOARDS | MORE_BOARDS)[board]
    own = [compile_source(PORT / name, folder, core, *more) for name in ("startup.c", "semihosting.c")]
    machine = next(m for m in machines.MACHINES if m.name == board)
    script = folder / f"{board}.ld"
    script.write_text(integration.linker_script(machine, ["network_model_sec"], "A test", resident=resident))
    image = folder / f"{board}.elf"
    command = ["arm-none-eabi-gcc", "-mthumb", *CORES[core], "-nostartfiles", "-Wl,--gc-sections"]
    command += [f"-T{script}", *map(str, (*own, *objects)), "-lm", "-o", str(image)]
    _run(command)
    return image


def run(image: Path, board: str) -> str:
    """What a firmware prints; it ends with exit code 0, or the test fails."""
    command = ["qemu-system-arm", "-M", board, "-nographic", "-kernel", str(image)]
    command += ["-semihosting-config", "enable=on,target=native"]
    return _run(command)


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr
