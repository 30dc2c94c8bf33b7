"""All C and C++ of a folder: no warning of either compiler, no dynamic memory, no recursion; time of `deploy`."""

from __future__ import annotations

import graphlib
import re
import resource
import subprocess
from pathlib import Path

import pytest

from micronpu.deploy.shared import FUNCTIONS
from tests.deploy import firmware, programs
from tests.deploy.host_build import host
from tests.tools import need

pytestmark = pytest.mark.filterwarnings("ignore")
DRIVER = f"-I{Path(__file__).parent / 'driver'}"
RELAXED = ("-Wno-int-to-pointer-cast",)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("sources") / "out"
    programs.program("ethosu_int8").deploy(made, target="corstone300", functions=FUNCTIONS)
    return made


@pytest.fixture(scope="module")
def core_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("sources") / "out"
    programs.program("core").deploy(made, target="cortex-m33")
    return made


def sources(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in (".c", ".cpp"))


def test_no_warning_of_clang(folder: Path, core_folder: Path) -> None:
    """For this machine; gcc's for the cores are in `test_firmware` and below."""
    need("clang")
    for place in (folder, core_folder):
        for path in sources(place):
            if path.parent.name == "board":  # of an Arm core, which another test compiles
                continue
            tool, standard = ("clang++", "-std=c++17") if path.suffix == ".cpp" else ("clang", "-std=c11")
            flags = ["-Wall", "-Wextra", "-Wconversion", "-Wpedantic", "-Werror", "-fsyntax-only", f"-I{place}", DRIVER]
            host([tool, standard, *flags, *RELAXED, *firmware.executorch_flags(), str(path)])


RULES = re.compile(r"\[misra-c2012-([\d.]+)\]")
OF_TESTS = ("main.cpp", "micronpu_profile.c", "_vectors.c")


@pytest.mark.sweep
def test_deviations_from_misra_are_documented(folder: Path, core_folder: Path) -> None:
    """docs/products.md names each rule that a file of a product breaks, by cppcheck, and no other that it looks for."""
    need("cppcheck")
    page = Path("docs/products.md").read_text("utf-8").split("## Deviations from MISRA C:2012")[1].split("\n## ")[0]
    documented, named = set(re.findall(r"^\| (?:Rule|Dir) ([\d.]+)", page, re.MULTILINE)), set()
    options = ["--addon=misra", "--std=c11", "--enable=style", "--platform=arm32-wchar_t4", "--quiet", DRIVER]
    options += ["-UMICRONPU_COUNTS_CYCLES"]  # which only micronpu.h defines
    for place in (folder, core_folder):
        files = [str(path) for path in sorted(place.glob("*.c")) if not path.name.endswith(OF_TESTS)]
        done = subprocess.run(["cppcheck", *options, *files], cwd=place, capture_output=True, text=True, check=True)
        found = {(rule, line) for line in done.stderr.splitlines() for rule in RULES.findall(line)}
        assert len({rule for rule, _ in found}) > 5
        assert not [line for rule, line in found if rule not in documented]
        named |= {rule for rule, _ in found}
    assert documented - named == {"1.2", "4.3", "4.9"}  # which cppcheck does not look for


@pytest.fixture(scope="module")
def objects(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Objects for a Cortex-M55, each with what its functions call."""
    need("arm-none-eabi-gcc", "arm-none-eabi-g++", "arm-none-eabi-nm")
    work = tmp_path_factory.mktemp("objects")
    for path in sources(folder):
        flags = firmware.executorch_flags() if path.suffix == ".cpp" else ()
        firmware.compile_source(
            path, work, "cortex-m55", *flags, f"-I{folder}", DRIVER, *RELAXED, "-fcallgraph-info=su"
        )
    return work


@pytest.mark.sweep
def test_no_dynamic_memory(objects: Path) -> None:
    """Nothing names an allocator of the C library or of C++.

    The virtual destructors of ExecuTorch's headers name `operator delete`; objects stand in a Slot, and none calls it.
    """
    undefined = host(["arm-none-eabi-nm", "-u", *map(str, sorted(objects.glob("*.o")))])
    wanted = set(re.findall(r"U (\S+)", undefined))
    assert "memcpy" in wanted
    assert not {name for name in wanted if re.fullmatch(r"(_Zn[aw].*|_Zda.*|malloc|calloc|realloc|free)", name)}


def test_no_recursion(objects: Path) -> None:
    """Of the folder's own functions none calls itself, by whatever way; calls of the runtime lead out of it."""
    calls: dict[str, set[str]] = {}
    for path in objects.glob("*.ci"):
        for caller, called in re.findall(r'edge: \{ sourcename: "([^"]+)" targetname: "([^"]+)"', path.read_text()):
            calls.setdefault(caller, set()).add(called)
    assert len(calls) > 40
    graphlib.TopologicalSorter(calls).prepare()


def test_functions_need_little_stack(objects: Path) -> None:
    """No frame of the folder's own functions is above 512 bytes: that of SHA-256 is the largest."""
    frames = {}
    for path in objects.glob("*.ci"):
        for name, size in re.findall(r'title: "([^"]+)" label: "[^"]*\\n(\d+) bytes \(static\)"', path.read_text()):
            frames[name] = int(size)
    assert len(frames) > 60 and 256 < max(frames.values()) <= 512, max(frames.items(), key=lambda f: f[1])


def test_deploying_takes_less_than_a_second(tmp_path: Path) -> None:
    """Of the processor, without imports and without the runs that make the golden vectors."""
    program = programs.program("ethosu_int8")
    program.deploy(tmp_path / "first", target="corstone300")
    begun = resource.getrusage(resource.RUSAGE_SELF)
    program.deploy(tmp_path / "second", target="corstone300", functions=FUNCTIONS)
    ended = resource.getrusage(resource.RUSAGE_SELF)
    assert ended.ru_utime + ended.ru_stime - begun.ru_utime - begun.ru_stime < 1.0
