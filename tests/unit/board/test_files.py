"""What is refused before anything is started: images, boards, runners and their package."""

from __future__ import annotations

import re
import struct
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from micronpu.base.errors import MicroNpuError, OptionError
from micronpu.board import qemu
from micronpu.board.boards import boards, find_board
from micronpu.board.check import MachineOptions, npus_of
from micronpu.board.elf import Elf
from micronpu.board.gdb import BoardError
from micronpu.board.runners import find_runner, install, package
from micronpu.cli.main import app


def header(kind: int = 2, machine: int = 40, bits: int = 1, segments: int = 1) -> bytes:
    magic = b"\x7fELF" + bytes([bits, 1, 1]) + bytes(9)
    return magic + struct.pack("<2H5I6H", kind, machine, 1, 0x101, 52, 0, 0, 52, 32, segments, 40, 0, 0)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"hello", "is no ELF file"),
        (header(bits=2), "not for a 32-bit Cortex-M"),
        (header(machine=3), "for another core"),
        (header(kind=1), "is not linked"),
        (header(), "truncated in its table"),
        (header() + struct.pack("<8I", 1, 0, 0, 0, 4096, 4096, 5, 4), "a segment of it ends behind the file"),
    ],
)
def test_images(data: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "firmware.elf"
    path.write_bytes(data)
    with pytest.raises(BoardError, match=said):
        Elf.read(path)
    good = header() + struct.pack("<8I", 1, 0, 0x100, 0x200, 16, 32, 5, 4)
    path.write_bytes(good)
    assert Elf.read(path).segments[0].address == 0x200


def test_boards() -> None:
    with pytest.raises(OptionError, match=r"no emulated board 'corstone999'.*corstone300"):
        find_board("corstone999")
    with pytest.raises(OptionError, match=r"has no ethos-u85-256.*ethos-u55-32"):
        npus_of(find_board("corstone300"), "ethos-u85-256")
    with pytest.raises(OptionError, match="has no NPU"):
        npus_of(find_board("mps2-an505"), "ethos-u55-128")
    assert npus_of(find_board("mps2-an505"), "") == []
    for board in boards().values():
        assert bool(board.npus) == bool(board.families) and board.title and board.machine
        assert npus_of(board, "") or not board.npus


@pytest.mark.parametrize("given", [{"seconds": 0}, {"seconds": float("nan")}, {"clock_mhz": -1}])
def test_limits(given: dict[str, float]) -> None:
    with pytest.raises(OptionError, match="no positive number"):
        MachineOptions(**given)


def test_runners() -> None:
    assert find_runner("corstone300", "pte", "u55").pool == 2 << 20
    with pytest.raises(OptionError, match=r"no ExecuTorch runner for corstone310.*a \.tflite.*corstone300"):
        find_runner("corstone310", "pte", "u55")
    with pytest.raises(OptionError, match=r"no ExecuTorch runner for mps2-an505\. Try: `micronpu deploy`"):
        find_runner("mps2-an505", "pte")
    with pytest.raises(OptionError, match=r"mps2-an505 has no Ethos-U55, for which the program is\. Try: corstone300"):
        find_runner("mps2-an505", "pte", "u55")
    with pytest.raises(OptionError, match="no LiteRT Micro runner for corstone320"):
        find_runner("corstone320", "tflite", "u85")


def test_a_model_is_not_compiled_for_a_board_without_a_runner(tmp_path: Path) -> None:
    model = tmp_path / "net.tflite"
    model.write_bytes(b"TFL3")
    for board, said in (
        ("corstone310", r"a \.tflite of `micronpu compile -o net\.tflite --vela`"),
        ("alif-e7-hp", "`micronpu deploy` and `micronpu board build`"),
        ("mps2-an386", "`micronpu deploy` and `micronpu board build`"),
        ("toaster", "There is no emulated board 'toaster'. Try: one of corstone300"),
    ):
        done = CliRunner().invoke(app, ["board", "run", str(model), "--board", board])
        assert done.exit_code != 0 and re.search(said, " ".join(done.output.split())), done.output


def test_another_package_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is kept of a wheel that has another hash, however it calls itself."""
    monkeypatch.setenv("MICRONPU_CACHE_DIR", str(tmp_path / "cache"))
    wheel = tmp_path / f"mlia_ethos_u-{package().version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for runner in package().runners:
            archive.writestr(f"{package().folder}/{runner.folder}/{package().image}", "evil")
    with pytest.raises(BoardError, match="not the file that its hash says"):
        install(wheel)
    with pytest.raises(BoardError, match="cannot be read"):
        install(tmp_path / "missing.whl")
    assert not (tmp_path / "cache").exists()
    with pytest.raises(BoardError, match=r"is not installed.*micronpu board install"):
        package().runners[0].image()


def test_another_image_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MICRONPU_CACHE_DIR", str(tmp_path))
    runner = package().runners[0]
    path = tmp_path / "board" / f"{package().name}-{package().version}" / runner.folder / package().image
    path.parent.mkdir(parents=True)
    path.write_bytes(header())
    with pytest.raises(BoardError, match="damaged, or another version"):
        runner.image()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("", "there is no qemu-system-arm"),
        ("echo QEMU emulator version 6.1.0", "is QEMU 6.1, and the emulated boards need 7.2"),
        ("echo something else", "does not say which version"),
    ],
)
def test_no_qemu(script: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if script:
        path = tmp_path / qemu.QEMU
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    qemu.find_qemu.cache_clear()
    try:
        with pytest.raises(MicroNpuError, match=f"{said}.*Try: "):
            qemu.find_qemu()
    finally:
        qemu.find_qemu.cache_clear()
