"""`micronpu doctor`: installed and missing dependencies, and how to install them."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from micronpu.base.cache import CACHE, FOLDER, Usage
from micronpu.base.errors import FileError, MicroNpuError, RuntimeUnavailableError
from micronpu.base.extensions import BACKEND_POINTS, GROUPS, extensions, package_of
from micronpu.base.files import check_new_folder
from micronpu.base.installed import VERSION, installed, python_versions, requirements
from micronpu.base.texts import plural
from micronpu.cli import console
from micronpu.cli.named_models import OTHER_TORCH
from micronpu.targets.registry import BACKENDS, BROKEN
from micronpu.upstream.shim import SEEN, all_shims, is_seen

_REQUIREMENT = re.compile(r"([\w.-]+?)\s*((?:[<>=!~]=?[^;]*)?)(?:;(.*))?$")
_TESTED = "Linux on x86-64, Python 3.11"
"""Environment in which the whole test suite runs."""
_ELSEWHERE = {
    ("Linux", "aarch64"): "programs for NPUs and microcontrollers were run in an emulator, compiling was not",
    ("Darwin", "arm64"): "the native code was compiled once, nothing was run",
    ("Windows", ""): "nothing was run; programs compile and do not run here: use WSL",
}
"""Tests that ran on other systems, by system and processor; "" is any processor."""
_EXTRA = re.compile(r"extra == ['\"](\w+)")
"""Marks requirements of an extra, which no program needs."""
_PROJECTS_OWN = ("dev", "docs")
"""Extras for work on micronpu itself."""
_WIDTH = 22
"""Columns of a name; private names are longer."""


@dataclass(frozen=True)
class Dependency:
    """A dependency of micronpu.

    Attributes:
        found: installed version or place; "" if missing.
        good: True if it can be used.
        remedy: what to do if it cannot be used.
        needed: True if micronpu does not work without it.
    """

    name: str
    found: str
    good: bool
    remedy: str = ""
    needed: bool = True

    @property
    def state(self) -> str:
        """Return a word: of what is not needed, "broken" is there and cannot be used."""
        return "ok" if self.good else "missing" if self.needed else "broken" if self.found else "absent"


_Upstream = Annotated[
    bool,
    typer.Option(
        "--upstream",
        help="Also list each private or deprecated name of torch, torchao and ExecuTorch that micronpu uses, with its "
        "state; imports them, which takes some seconds.",
    ),
]


_Clear = Annotated[
    bool, typer.Option("--clear-cache", help="Delete the answers of earlier compilations, and say how many there were.")
]


@console.guarded
def doctor(
    upstream: _Upstream = False, clear_cache: _Clear = False, json: console.Json = False, debug: console.Debug = False
) -> None:
    """Show what is installed, what is missing and how to get it.

    Exit code 1 if something required is missing. With --clear-cache nothing is examined.
    """
    if clear_cache:
        _clear(json)
        return
    here = f"{platform.system()} on {platform.machine()}, Python {platform.python_version()}"
    examined = itertools.chain(examine(), examine_upstream(every=upstream))
    findings = list(examined) if json else _printed(examined, here)
    if json:
        data = {
            "version": VERSION,
            "tested": _TESTED,
            "here": here,
            "tested_here": tested_here(),
            "findings": [asdict(f) for f in findings],
        }
        console.print_json(data)
    if any(f.needed and not f.good for f in findings):
        raise typer.Exit(1)


def tested_here() -> str:
    """Return what was tested on this system, processor and Python, as a clause; "" if the whole test suite ran."""
    system, processor = platform.system(), platform.machine()
    for (name, own), clause in _ELSEWHERE.items():
        if system == name and own in ("", processor):
            return clause
    if (system, processor) != ("Linux", "x86_64"):
        return "nothing was run on such a system"
    version = ".".join(platform.python_version_tuple()[:2])
    return "" if _TESTED.endswith(f" {version}") else "a part of the fast tests with this Python"


def _clear(json: bool) -> None:
    """Delete the compilation cache."""
    usage = CACHE.clear()
    if json:
        console.print_json({"folder": str(usage.folder or ""), "entries": usage.entries, "bytes": usage.bytes})
    elif usage.folder is None:
        console.say(f"There is no cache: {usage.why}.")
    else:
        console.say(f"Deleted {_held(usage)} from {usage.folder}.")


def _held(usage: Usage) -> str:
    return f"{plural(usage.entries, 'answer')} of {usage.bytes / 2**20:.1f} MiB"


def _examine_cache() -> Iterator[Dependency]:
    usage = CACHE.usage()
    why, found = usage.why, ""
    if usage.folder is not None:
        try:
            check_new_folder(usage.folder)
            found = f"{_held(usage)}, {usage.folder}"
        except FileError as error:
            why = error.what
    yield Dependency("cache", found, bool(found), f"another {FOLDER}; {why}", needed=False)


def _printed(examined: Iterable[Dependency], here: str) -> list[Dependency]:
    """Print a line for each finding as soon as it is known, and return all."""
    console.say(f"micronpu {VERSION}, {Path(__file__).parents[1]}.")
    console.say(f"Tested on {_TESTED}; here: {here}.{f' Tested here: {tested_here()}.' if tested_here() else ''}")
    console.say('A "missing" package is needed; what is "absent" or "broken" is for what its line ends with.')
    found = []
    for finding in examined:
        found.append(finding)
        line = f"{finding.state:8} {finding.name:{_WIDTH}}  {finding.found or 'not there'}"
        if not finding.good:
            line += f"  Try: {finding.remedy}"
        console.say(line, "" if finding.good or not finding.needed else "red")
    return found


def examine() -> Iterator[Dependency]:
    """Yield all findings without importing the dependencies; vendors' compilers are run if installed."""
    wanted = python_versions()
    version = platform.python_version()
    yield Dependency("Python", version, satisfies(version, wanted), f"Python {wanted}")
    for text in requirements():
        match = _REQUIREMENT.match(text)
        extra = _EXTRA.search(text)
        if match is None or (extra is not None and extra[1] in _PROJECTS_OWN):
            continue
        if "python_version" in text and sys.version_info >= (3, 11):
            continue
        name, limits = match[1], match[2].strip()
        version = installed(name)
        found = f"{version} ({limits})" if version else ""
        remedy = f'pip install "{name}{limits}"' + ("" if extra is None else f", the extra {extra[1]} of micronpu")
        yield Dependency(name, found, bool(version) and satisfies(version, limits), remedy, needed=extra is None)
    for examined in (
        *(_examine_plugin, _examine_cache, _examine_boards, examine_build, _examine_simulator),
        *(_examine_vendors, _examine_networks, _examine_extensions),
    ):
        with contextlib.suppress(ImportError):  # NumPy is missing, see above
            yield from examined()


def examine_upstream(*, every: bool) -> Iterator[Dependency]:
    """Yield private and deprecated names of torch, torchao and ExecuTorch that do not fit.

    They are examined, and therefore imported, only if a version differs from the tested one.

    Args:
        every: examine them at any version, and yield those that fit, too.
    """
    other = [package for package in SEEN if installed(package) and not is_seen(package)]
    for package in other:
        found = f"{installed(package)}, tested with {SEEN[package]}"
        yield Dependency(f"{package}'s private names", found, False, "`micronpu doctor --upstream`", needed=False)
    if not other and not every:
        return
    try:
        shims = all_shims()
    except (MicroNpuError, ImportError) as error:
        yield Dependency("private names", "", False, str(error), needed=False)
        return
    for shim in shims:
        misfit = shim.misfit()
        if misfit is None:
            if every:
                yield Dependency(shim.name, f"fits, as in {shim.package} {shim.versions}", True, needed=False)
        else:
            yield Dependency(shim.name, misfit.what, False, misfit.hint, needed=False)


def _examine_boards() -> Iterator[Dependency]:
    """Yield the dependencies of emulated boards: QEMU and Arm's runners."""
    from micronpu.board.gdb import BoardError
    from micronpu.board.qemu import QEMU, find_qemu, how_to_install
    from micronpu.board.runners import INSTALL, package

    try:
        path, version = find_qemu()
        yield Dependency(QEMU, f"{'.'.join(map(str, version))}, {path}", True, needed=False)
    except BoardError as error:
        yield Dependency(QEMU, "", False, f"{error.hint or how_to_install()}, for emulated boards", needed=False)
    runners = package()
    there, remedy = all(runner.installed() for runner in runners.runners), f"{INSTALL}, for emulated boards"
    yield Dependency(runners.name, runners.version if there else "", there, remedy, needed=False)


def examine_build() -> Iterator[Dependency]:
    """Yield the programs that `micronpu board build` runs."""
    from micronpu.deploy.toolchain import PACKAGES, missing_tools

    missing = missing_tools()
    for name in PACKAGES:
        remedy = f"{missing.get(name, '')}, for `micronpu board build`"
        yield Dependency(name, shutil.which(name) or "", name not in missing, remedy, needed=False)
    place = os.environ.get("executorch_DIR", "")  # noqa: SIM112 (CMake's name)
    remedy = "the commands in a deployed folder's README: once per core, some minutes, for `micronpu board build`"
    yield Dependency("executorch_DIR", place, Path(place).is_dir() and bool(place), remedy, needed=False)


def _examine_simulator() -> Iterator[Dependency]:
    """Yield the dependencies of the vendor's simulator for programs for silicon."""
    from micronpu.board.nsys_tools import chips, examine

    for found in examine(next(iter(chips()))):
        remedy = f"{found.remedy}, for programs of the SDK without a board"
        yield Dependency(found.name, str(found.path or ""), found.path is not None, remedy, needed=False)


def _examine_vendors() -> Iterator[Dependency]:
    """Yield packages of the NPUs' vendors; installed ones are tried in a separate process."""
    for backend in BACKENDS.values():
        for package, remedy in backend.vendor().items():
            if importlib.util.find_spec(package) is None:
                yield Dependency(package, "", False, remedy, needed=False)
                continue
            try:
                yield Dependency(package, backend.try_vendor(package), True, needed=False)
            except MicroNpuError as error:
                yield Dependency(package, error.what, False, error.hint, needed=False)


def _examine_networks() -> Iterator[Dependency]:
    """Yield torchvision, if installed: a separate process imports it, since it may be of another torch."""
    if importlib.util.find_spec("torchvision") is None:
        return
    command = [sys.executable, "-c", "import torchvision; print(torchvision.__version__)"]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    good = done.returncode == 0
    lines = [line.strip() for line in (done.stdout if good else done.stderr).splitlines() if line.strip()]
    remedy = f"{OTHER_TORCH}, for models torchvision:NAME"
    yield Dependency("torchvision", lines[-1] if lines else "it cannot be imported", good, remedy, needed=False)


def _examine_extensions() -> Iterator[Dependency]:
    """Yield backends, commands and passes of other packages; backends have been loaded, and report their errors."""
    for group in GROUPS:
        for name, point in extensions(group).items():
            broken = BROKEN.get(name) if group == BACKEND_POINTS else None
            found = package_of(point) if broken is None else broken.what
            yield Dependency(f"{group}: {name}", found, broken is None, broken.hint if broken else "", needed=False)


def _examine_plugin() -> Iterator[Dependency]:
    from micronpu.host.build import cache_directory, check_cache, find_compiler, has_prebuilt

    if has_prebuilt():
        yield Dependency("plug-in", "compiled, in the package", True)
        return

    def cache() -> str:
        check_cache(directory := cache_directory())
        return str(directory)

    checks: dict[str, Callable[[], str]] = {"C++ compiler": lambda: " ".join(find_compiler()), "plug-in's cache": cache}
    for name, find in checks.items():
        try:
            yield Dependency(name, find(), True)
        except RuntimeUnavailableError as error:
            yield Dependency(name, error.what, False, error.hint)


def satisfies(version: str, limits: str) -> bool:
    """Return True if a version satisfies limits such as ">=2.0,<3" or "==1.5.*"; only its numbers are compared."""
    have = _numbers(version)
    for limit in filter(None, map(str.strip, limits.split(","))):
        text = limit.lstrip("<>=!~")
        sign, wanted = limit.removesuffix(text), _numbers(text.lstrip())
        size = len(wanted) if text.endswith(".*") else max(len(have), len(wanted))
        left, right = (tuple([*v, *[0] * size][:size]) for v in (have, wanted))
        kept = {"==": left == right, "!=": left != right, ">=": left >= right, "<": left < right}
        kept |= {"<=": left <= right, ">": left > right, "~=": left >= right and left[: len(wanted) - 1] == wanted[:-1]}
        if not kept[sign]:
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()
