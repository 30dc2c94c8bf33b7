"""Building a deployed folder: CMake, Ninja and Arm's compiler as processes, and their errors as one message."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from micronpu.base.errors import FileError, MicroNpuError, OptionError
from micronpu.base.files import read_file, write_file
from micronpu.deploy.footprint import Component, footprint
from micronpu.deploy.integration import LINUX_TOOLCHAIN, RUN
from micronpu.deploy.shared import SHARED
from micronpu.deploy.toolchain import missing_tools

_APPLICATION, _LOG = f"{SHARED}_app", "micronpu-build.log"
_INSIDE = ("", "lib/cmake/ExecuTorch", "cmake/ExecuTorch")
_CONFIG = "executorch-config.cmake"
_OWN = f"CMAKE_PROJECT_NAME:STATIC={SHARED}_firmware"
_CMSIS_NN = "cmsis-nn"
_OF_CMSIS_NN = ("Include/arm_nnfunctions.h", f"lib{_CMSIS_NN}.a", f"lib/lib{_CMSIS_NN}.a")
_STEP = re.compile(r"^\[\s*(\d+)(?:/(\d+)|%)\]")
_UNDEFINED = re.compile(r"undefined reference to `([^'(]+)")
_MOST = 4
"""Maximum number of names in a message."""
_ERRORS = re.compile(r"(?<!collect2: )error: |overflowed by|cannot find|VFP register|multiple definition")
_LINKER, _COLLECT = re.compile(r"^\S*/ld(\.bfd)?: (?!.*(: in function|warning: ))"), re.compile(r"^collect2: ")
"""Lines with an error, other lines of the linker, and the line of gcc, which says only that there were such lines."""
_CAUSES = (
    (r"VFP register|[Cc]onflicting (CPU|architecture)", "an ExecuTorch that is built for the core of this folder"),
    (rf"has no {_CMSIS_NN}", "--cmsis-nn PATH of CMSIS-NN's sources, which are compiled, or of its library"),
    (r"overflowed by", "a larger chip, a smaller program, or a linker script of your own: --linker FILE.ld"),
    (
        r"undefined reference|executorch/\S+: No such file",
        "an ExecuTorch of the version and with the options that README.md of the folder names",
    ),
)
"""Texts of compiler and linker with what to try."""


class BuildError(MicroNpuError):
    """A deployed folder cannot be built."""


@dataclass(frozen=True)
class BuildOptions:
    """How a folder is built.

    Attributes:
        runtime: installation of ExecuTorch for the core; default: where CMake finds it.
        output: folder of the build; default: ``build`` in the deployed folder.
        toolchain: CMake's toolchain file; default: that of the folder.
        linker: linker script of a board; default: that of the folder, for the emulated board.
        definitions: further variables of CMake, such as ``MICRONPU_RUNS=10``.
        cmsis_nn: CMSIS-NN's sources, or the folder of its library; default: that of the ExecuTorch.
    """

    runtime: Path | None = None
    output: Path | None = None
    toolchain: Path | None = None
    linker: Path | None = None
    definitions: Sequence[str] = ()
    cmsis_nn: Path | None = None


@dataclass(frozen=True)
class Built:
    """A firmware.

    Attributes:
        image: its ELF file.
        components: their sizes; none if the linker writes no map.
        run: command that runs it on the emulated board; "" without one.
    """

    image: Path
    components: tuple[Component, ...]
    run: str


def build(folder: Path, options: BuildOptions, tell: Callable[[str, float], None] = lambda step, part: None) -> Built:
    """Build the application of a folder that `deploy` wrote; files that are up to date are not compiled again.

    Args:
        tell: progress callback.

    Raises:
        FileError: it is no such folder, or the build's folder holds other files.
        OptionError: an option is not usable.
        BuildError: a program is missing or fails; the whole output is in ``micronpu-build.log`` of the build's folder.
    """
    text = _check_folder(folder)
    lead = read_file(readme).decode(errors="replace") if (readme := folder / "README.md").is_file() else ""
    if found := re.search(r"^\*\*This program (.*)\*\*(.*)$", lead, re.MULTILINE):
        raise FileError(f"The program of {folder} {found[1]}{found[2]}", hint="`micronpu run` of the program meanwhile")
    output = options.output or folder / "build"
    _check_output(output)
    given = _definitions(folder, options)
    if options.cmsis_nn is not None:
        given[f"{SHARED.upper()}_CMSIS_NN"] = str(_cmsis_nn(options.cmsis_nn, text))
    check_tools(own_toolchain=options.toolchain is None)
    (output / "CMakeCache.txt").unlink(missing_ok=True)  # options of an earlier build are not kept
    log: list[str] = []
    try:
        tell("build", 0.0)
        configure = ["cmake", "-S", str(folder), "-B", str(output), "-G", "Ninja"]
        _run([*configure, *(f"-D{name}={value}" for name, value in given.items())], log, folder, output)
        if "executorch_DIR-NOTFOUND" in (output / "CMakeCache.txt").read_text(encoding="utf-8", errors="replace"):
            raise BuildError(
                f"{folder} needs ExecuTorch, built and installed for its core, and CMake finds none.",
                hint=f"--runtime PATH, or the variable executorch_DIR; {_how(folder)}",
            )
        _run(["cmake", "--build", str(output)], log, folder, output, tell)
    finally:
        if output.is_dir():
            write_file(output / _LOG, "".join(log).encode())
    image, linker_map = output / _APPLICATION, output / f"{_APPLICATION}.map"
    run = re.search(rf"^#   ({RUN}) \S+ (.+)$", text, re.MULTILINE) if options.linker is None else None
    return Built(
        image,
        footprint(image, linker_map) if linker_map.is_file() else (),
        f"{run[1]} {image} {run[2]}" if run is not None else "",
    )


def is_deployed(folder: Path) -> bool:
    """Return True if `deploy` wrote a folder that can be built."""
    with contextlib.suppress(FileError):
        return bool(_check_folder(folder))
    return False


def _check_folder(folder: Path) -> str:
    """Return the text of the folder's CMakeLists.txt."""
    path = folder / "CMakeLists.txt"
    if path.is_file() and f"project({SHARED}_firmware" in (text := read_file(path).decode(errors="replace")):
        return text
    if (folder / LINUX_TOOLCHAIN).is_file():
        raise FileError(
            f"{folder} is for a core with Linux, where ExecuTorch's own runner runs the program.",
            hint="the commands in its README.md",
        )
    if (folder / f"{SHARED}.h").is_file():
        raise FileError(
            f"{folder} has no golden vectors, and so no application to build.",
            hint="micronpu deploy --vectors FILE.npz with outputs, into a new folder",
        )
    what = _lack(folder, "is not a folder that `micronpu deploy` wrote")
    raise FileError(f"{folder} {what}.", hint="micronpu deploy model.pte --for TARGET -o FOLDER, then this FOLDER")


def _check_output(output: Path) -> None:
    """Refuse a folder with other files than those of an earlier build."""
    if not output.exists() or (output.is_dir() and not any(output.iterdir())) or (output / _LOG).is_file():
        return
    cache = output / "CMakeCache.txt"
    if not cache.is_file() or _OWN not in read_file(cache).decode(errors="replace"):
        raise FileError(f"{output} is not the folder of an earlier build.", hint="a new folder: --output DIR")
    if "CMAKE_GENERATOR:INTERNAL=Ninja" not in read_file(cache).decode(errors="replace"):
        raise FileError(f"{output} was built with another generator than Ninja.", hint="a new folder: --output DIR")


def _definitions(folder: Path, options: BuildOptions) -> dict[str, str]:
    """Return variables of CMake."""
    toolchain = options.toolchain or folder / "board" / "toolchain.cmake"
    if not toolchain.is_file():
        raise OptionError(
            f"There is no toolchain file {toolchain}"
            + ("." if options.toolchain else ": no emulated board has the core of this folder."),
            hint="--toolchain FILE.cmake and --linker FILE.ld of your board",
        )
    found = {"CMAKE_TOOLCHAIN_FILE": str(toolchain.resolve()), f"{SHARED.upper()}_BOARD": "ON"}
    if options.linker is not None:
        if not options.linker.is_file():
            raise OptionError(f"There is no linker script {options.linker}.", hint="a file like board/link.ld")
        found[f"{SHARED.upper()}_LINKER_SCRIPT"] = str(options.linker.resolve())
    if options.runtime is not None:
        found["executorch_DIR"] = str(_package(options.runtime, folder))
    for text in options.definitions:
        name, sign, value = text.partition("=")
        if not sign or not re.fullmatch(r"\w+(:\w+)?", name, re.ASCII):
            raise OptionError(f"{text!r} is no NAME=VALUE.", hint="-D MICRONPU_RUNS=10")
        found[name] = value
    return found


def _package(runtime: Path, folder: Path) -> Path:
    """Return the folder of CMake's package in an installation of ExecuTorch."""
    for inside in _INSIDE:
        if (runtime / inside / _CONFIG).is_file():
            return (runtime / inside).resolve()
    if (runtime / "runtime" / "executor" / "method.cpp").is_file():
        raise OptionError(f"{runtime} has ExecuTorch's sources, and not an installation for a core.", hint=_how(folder))
    what = _lack(runtime, "has no ExecuTorch that is installed for a core")
    raise OptionError(f"{runtime} {what}: no lib/cmake/ExecuTorch/{_CONFIG}.", hint=_how(folder))


def _cmsis_nn(path: Path, text: str) -> Path:
    """Return the folder of CMSIS-NN for a folder whose CMakeLists.txt has this text."""
    if _CMSIS_NN not in text:
        raise OptionError("No kernel of this folder calls CMSIS-NN.", hint="leave out --cmsis-nn")
    if not any((path / inside).is_file() for inside in _OF_CMSIS_NN):
        what = _lack(path, "has neither CMSIS-NN's sources nor its library")
        raise OptionError(
            f"{path} {what}: there is no {', no '.join(_OF_CMSIS_NN)}.",
            hint="git clone https://github.com/ARM-software/CMSIS-NN, and that folder",
        )
    return path.resolve()


def _lack(path: Path, lack: str) -> str:
    """Return what a path has instead of a folder's contents: the lack, if it is a folder at all."""
    return lack if path.is_dir() else "is a file" if path.exists() else "does not exist"


def _how(folder: Path) -> str:
    return f"the commands in {folder / 'README.md'}, which build and install it"


def check_tools(*, own_toolchain: bool = True) -> None:
    """Check that the programs of a build are installed."""
    missing = {name: how for name, how in missing_tools().items() if own_toolchain or name in ("cmake", "ninja")}
    if missing:
        raise BuildError(
            f"A deployed folder is built with {', '.join(missing)}, and no such program is installed.",
            hint="; ".join(missing.values()),
        )


def _run(
    command: Sequence[str],
    log: list[str],
    folder: Path,
    output: Path,
    tell: Callable[[str, float], None] = lambda step, part: None,
) -> None:
    """Run a program of the build."""
    environment = {**os.environ, "LC_ALL": "C", "NINJA_STATUS": "[%f/%t] "}
    log.append(f"$ {' '.join(command)}\n")
    lines: list[str] = []
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        encoding="utf-8", errors="replace", env=environment,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                if (step := _STEP.match(line)) is not None:
                    tell("build", int(step[1]) / int(step[2] or 100))
        except BaseException:
            process.kill()
            raise
        finally:
            log += lines
    if process.returncode:
        what = _cmake_error(lines) or _tool_error(lines) or f"{command[0]} ends with {process.returncode}"
        hint = next((hint for pattern, hint in _CAUSES if re.search(pattern, what)), "")
        where = f"the whole output is in {output / _LOG}"
        raise BuildError(f"{folder} cannot be built: {what.rstrip('.')}.", hint=f"{hint}; {where}" if hint else where)


def _cmake_error(lines: Sequence[str]) -> str:
    """Return the text of CMake's first error; "" if there is none."""
    for number, line in enumerate(lines):
        if not line.startswith("CMake Error"):
            continue
        text = [line.partition(": ")[2].strip()] if ": " in line else []
        for more in lines[number + 1 :]:
            if more.strip() and not more.startswith("  "):
                break
            text.append(more.strip())
        return re.sub(r" at \S+:\d+ \(message\):?", "", " ".join(filter(None, text)))
    return ""


def _tool_error(lines: Sequence[str]) -> str:
    """Return the first error of compiler, linker or Ninja, or all names that the linker does not find; "" if none."""
    names = dict.fromkeys(found[1] for line in lines if (found := _UNDEFINED.search(line)) is not None)
    if names:
        more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
        return f"undefined reference to {', '.join([*names][:_MOST])}{more}"
    first = (line.strip() for pattern in (_ERRORS, _LINKER, _COLLECT) for line in lines if pattern.search(line))
    return _LINKER.sub("", next(first, ""))
