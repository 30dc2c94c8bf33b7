"""Builds what `deploy` writes for this machine, with the runtime and the kernels of ExecuTorch's wheel."""

from __future__ import annotations

import functools
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from micronpu.deploy import csource
from micronpu.targets import board as pools
from tests.deploy import firmware

HERE = Path(__file__).parent
TEMPLATES = Path(csource.__file__).parent / "templates"
CPP = ("g++", "-std=c++17")
_ROOMY = 65536


def host(command: list[str]) -> str:
    """What a command prints; it ends with 0, or the test fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout


@functools.cache
def libraries() -> tuple[str, ...]:
    """Flags that link ExecuTorch's runtime and kernels of the wheel."""
    folder = str(Path(firmware.executorch_flags()[2]).parent / "lib")
    names = ("executorch", "executorch_kernels_optimized", "executorch_kernels_quantized")
    return (f"-L{folder}", f"-Wl,-rpath,{folder}", "-Wl,--no-as-needed", *(f"-l{n}" for n in names))


@functools.cache
def parsed_headers() -> tuple[str, ...]:
    """Flags with which the compiler has read ExecuTorch's headers already, which takes most of the time of a file.

    They hide what a file forgets to include, which is seen where it is compiled for a core.
    """
    texts = "".join(path.read_text() for path in sorted(TEMPLATES.glob("*.?pp.in")))
    header, flags = firmware.kept() / "headers.h", firmware.executorch_flags()
    header.write_text("\n".join(sorted({*re.findall(r"^#include <executorch/.*>$", texts, re.MULTILINE)})) + "\n")
    host([*CPP, *flags, "-x", "c++-header", str(header), "-o", f"{header}.gch"])
    return (*flags, "-include", str(header))


def host_sizes(folder: Path) -> pools.Sizes:
    """Sizes of ExecuTorch's structures on this machine."""
    (folder / "sizes.cpp").write_text(
        '#include "sizes.inc"\n#include <cstdio>\n'
        '#define SHOW(name, value) std::printf(#name " %zu\\n", size_t(value));\nint main() { FOR_ALL_SIZES(SHOW) }\n'
    )
    flags = (*CPP, f"-I{HERE}", *parsed_headers())
    host([*flags, str(folder / "sizes.cpp"), "-o", str(folder / "sizes")])
    reported = re.findall(r"^(\w+) (\d+)$", host([str(folder / "sizes")]), re.MULTILINE)
    return pools.Sizes(**{name: int(value) for name, value in reported})


def sized(folder: Path, given: Mapping[str, tuple[int, int]] | None = None) -> Path:
    """The folder with pools for this machine, whose structures are larger than a core's.

    Args:
        given: bytes of method and temporary pool by program; plenty for each unless given.
    """
    most = max((t for _, t in (given or {}).values()), default=_ROOMY)

    def method(match: re.Match[str]) -> str:
        name = match["name"]
        size = given[name.lower()][0] if given else _ROOMY
        return f"{match['before']}{size}{match['after']}"

    for path in [*folder.glob("*.h"), *folder.glob("*.c"), *folder.glob("*.cpp")]:
        text = path.read_text()
        for pattern in (
            r"(?P<before>#define (?P<name>\w+)_METHOD_POOL_BYTES )\d+(?P<after>)",
            r"(?P<before>uint8_t (?P<name>\w+)_method_pool\[)\d+(?P<after>\])",
        ):
            text = re.sub(pattern, method, text)
        text = re.sub(r"(_TEMPORARY_POOL_BYTES) \d+", rf"\1 {most}", text)
        text = re.sub(r"(uint8_t \w+_temporary_pool)\[\d+\]", rf"\1[{most}]", text)
        path.write_text(re.sub(r"(\w+_temporary_pool), \d+,", rf"\1, {most},", text))
    return folder


def compiled(source: Path, *flags: str) -> str:
    """The object of a source of a folder."""
    if source.suffix == ".cpp":
        return str(firmware.object_of(source, (*CPP, *parsed_headers(), *flags)))
    return str(firmware.object_of(source, ("gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", *flags)))


def built(folder: Path, result: Path, *flags: str, kernels: bool = False) -> Path:
    """The application of a folder.

    Args:
        kernels: with the folder's own registration beside that of the wheel.
    """
    sources = [p for p in sorted(folder.iterdir()) if p.suffix in (".c", ".cpp") and p.name != "micronpu_kernels.cpp"]
    objects = [compiled(path, *flags) for path in sources]
    for path in sorted(folder.glob("*.S")):  # includes files of data
        objects.append(str(result.with_name(f"{result.name}.{path.name}.o")))
        host(["gcc", f"-Wa,-I,{folder}", "-c", str(path), "-o", objects[-1]])
    if kernels:
        objects += _registration(folder)
    host([*CPP, *objects, *flags, "-o", str(result), *libraries()])
    return result


def _registration(folder: Path) -> list[str]:
    """What links the folder's registration of kernels.

    The wheel has other kernels of some operators, and registers those first: the folder's own are never called, and
    stand at address 0.
    """
    made = compiled(folder / "micronpu_kernels.cpp")
    library = Path(libraries()[0].removeprefix("-L"))
    there = "".join(host(["nm", "-D", "--defined-only", str(path)]) for path in sorted(library.glob("lib*.so")))
    wanted = re.findall(r"U (\w*6native\w*)", host(["nm", "-u", made]))
    return [made, *(f"-Wl,--defsym,{name}=0" for name in wanted if f" {name}\n" not in there)]
