"""Arm's inference runners: list, installation, and download.

They are third-party firmware, in a package on PyPI with a version and hashes in ``runners.toml``.  pip downloads it,
and refuses files with another hash.
"""

from __future__ import annotations

import functools
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from micronpu.base.errors import OptionError, first_line
from micronpu.base.files import write_file
from micronpu.base.parsing import parse_toml
from micronpu.board.boards import boards, find_board
from micronpu.board.elf import Elf
from micronpu.board.gdb import BoardError
from micronpu.host.build import cache_directory
from micronpu.report.codec import decode

INSTALL = "micronpu board install"
_PIP_SECONDS = 600


@dataclass(frozen=True)
class MemoryArea:
    """A part of the board's memory: its first address and its size in bytes."""

    address: int
    size: int


@dataclass(frozen=True)
class Runner:
    """One image.

    Attributes:
        board: name of the board that it is for.
        format: "pte" or "tflite".
        family: generation of Ethos-U of its driver, such as "u55".
        folder: of the image in the package.
        pool: bytes of the method allocator, 0 without one.
    """

    board: str
    format: str
    family: str
    folder: str
    sha256: str
    pool: int = 0

    @property
    def npu(self) -> str:
        """Its NPU generation as shown to users."""
        return f"Ethos-{self.family.upper()}"

    @property
    def title(self) -> str:
        return f"Arm's {_KINDS[self.format]} runner for {self.board} with {self.npu}"

    def installed(self) -> Path | None:
        """Return the path of the image, None if it is not installed."""
        path = _home() / self.folder / package().image
        return path if path.is_file() else None

    def image(self) -> Path:
        """Return the path of the image, after checking its hash."""
        path = self.installed()
        if path is None:
            raise BoardError(f"{self.title} is not installed.", hint=INSTALL)
        _check(path.read_bytes(), self.sha256, str(path))
        return path

    def function(self) -> int:
        """Return the address of the function that runs the model once."""
        return _function(self.image(), package().function)


FIRMWARE = (
    "`micronpu deploy` and `micronpu board build`, whose firmware runs here, too, with an ExecuTorch that the commands "
    "in the folder's README.md build once for the core, in some minutes"
)
_KINDS = {"pte": "ExecuTorch", "tflite": "LiteRT Micro"}


@functools.cache
def _function(path: Path, name: str) -> int:
    return Elf.read(path).symbol(name)


@dataclass(frozen=True)
class Package:
    """The package of the runners, with their common properties."""

    name: str
    version: str
    wheel: str
    licence: str
    folder: str
    image: str
    model: MemoryArea
    inputs: MemoryArea
    outputs: MemoryArea
    function: str
    runners: tuple[Runner, ...]


@functools.cache
def package() -> Package:
    text = resources.files("micronpu.board").joinpath("runners.toml").read_text(encoding="utf-8")
    return decode(Package, parse_toml(text))


def has_runner(board: str, format: str, family: str) -> bool:
    """Return True if the package has a runner for a board, a model's format and an NPU generation."""
    return any((r.board, r.format, r.family) == (board, format, family) for r in package().runners)


def find_runner(board: str, format: str, family: str = "") -> Runner:
    """Return the runner for a board, a model's format and an NPU generation."""
    own = find_board(board)
    for runner in package().runners:
        if (runner.board, runner.format, runner.family) == (board, format, family):
            return runner
    there = [f"{r.board} with {r.npu}" for r in package().runners if r.format == format]
    other = "a .tflite of `micronpu compile -o net.tflite --vela`" if format == "pte" else "a .pte"
    other = f"{other}, or " if any((r.board, r.family) == (board, family) for r in package().runners) else ""
    other += f"{FIRMWARE}; or " if format == "pte" else ""
    npu = f" with an Ethos-{family.upper()}" if family else ""
    if family and family not in own.families:
        can = ", ".join(name for name, known in boards().items() if family in known.families)
        raise OptionError(f"{board} has no Ethos-{family.upper()}, for which the program is.", hint=can)
    raise OptionError(
        f"Arm's package has no {_KINDS[format]} runner for {board}{npu}.",
        hint=f"{other}{', '.join(dict.fromkeys(there))}",
    )


def install(wheel: Path | None = None) -> Path:
    """Download the package with pip, and store its images in the cache.

    Returns:
        The folder with them.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = wheel if wheel is not None else _download(Path(folder))
        try:
            data = path.read_bytes()
        except OSError as error:
            raise BoardError(f"{path} cannot be read: {error.strerror or error}.") from error
        _check(data, package().wheel, str(path))
        with zipfile.ZipFile(path) as archive:
            for runner in package().runners:
                target = _home() / runner.folder
                target.mkdir(parents=True, exist_ok=True)
                for name in (package().image, f"{package().image}.license"):
                    write_file(target / name, archive.read(f"{package().folder}/{runner.folder}/{name}"))
                runner.image()
    return _home()


def _download(folder: Path) -> Path:
    """Download the wheel with pip, without dependencies, and with a required hash."""
    asked = folder / "requirements.txt"
    asked.write_text(f"{package().name}=={package().version} --hash=sha256:{package().wheel}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-deps", "--require-hashes", "--dest", str(folder), "--requirement", str(asked)]
    what = f"pip cannot fetch {package().name} {package().version}"
    hint = f"a connection to PyPI; or {INSTALL} --wheel FILE.whl with a copy"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PIP_SECONDS, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BoardError(f"{what}: {first_line(error)}.", hint=hint) from error
    found = list(folder.glob("*.whl"))
    if done.returncode or not found:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        said = lines[-1].removeprefix("ERROR: ").rstrip(".") if lines else "it says nothing"
        raise BoardError(f"{what}: {said}.", hint=hint)
    return found[0]


def _check(data: bytes, sha256: str, name: str) -> None:
    if hashlib.sha256(data).hexdigest() != sha256:
        raise BoardError(f"{name} is not the file that its hash says: it is damaged, or another version.", hint=INSTALL)


def _home() -> Path:
    return cache_directory() / "board" / f"{package().name}-{package().version}"
