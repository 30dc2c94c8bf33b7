"""Images of programs: what a firmware takes, and that it refuses what is damaged or does not fit."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
from typer.testing import CliRunner

from micronpu.base.errors import MicroNpuError, OptionError, UnsupportedError
from micronpu.cli.main import app
from micronpu.deploy.image import CRC_AT, SIGNATURE_AT, Image, make_image, signed_part
from tests.deploy import firmware, programs
from tests.deploy.host_build import host
from tests.deploy.test_shared import plain
from tests.tools import need

pytestmark = pytest.mark.filterwarnings("ignore")


def summed(message: bytes) -> bytes:
    """Stands in for a signature: no cryptography."""
    return bytes([sum(message) % 256, 0x5A, *bytes(62)])


def buffer(kind: str) -> bytes:
    """A program with kernels of CMSIS-NN, or a small one, of whose images a core checks ten thousand in seconds."""
    return programs.program("core").buffer if kind == "core" else plain("two")


@functools.cache
def image(version: str, key: int = 0x5A, kind: str = "core") -> Image:
    def sign(message: bytes) -> bytes:
        made = bytearray(summed(message))
        made[1] = key
        return bytes(made)

    return make_image(buffer(kind), version=version, target="cortex-m33", sign=sign)


def sources(folder: Path, kind: str) -> list[Path]:
    """The check, the firmware's description and what `image.c` expects, in a folder."""
    programs.deploy(buffer(kind), folder, target="cortex-m33")
    old, new = image("1.9.3", kind=kind), image("1.10.0", 0x11, kind)

    def array(name: str, data: bytes) -> str:
        return f"static const uint8_t {name}[] = {{{', '.join(map(str, data))}}};\n"

    (folder / "expected.h").write_text(
        f'#include "model.h"\n#define IMAGE_BYTES {len(old.data)}u\n#define PROGRAM_BYTES {old.program_bytes}u\n'
        f"#define DAMAGED 10000u\n{array('image_bytes', old.data)}{array('newer_bytes', new.data)}"
    )
    (folder / "image.c").write_text((Path(__file__).parent / "image.c").read_text())
    return [folder / name for name in ("image.c", "micronpu_image.c", "model_image.c")]


@pytest.mark.sweep
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_the_check_on_this_machine(compiler: str, tmp_path: Path) -> None:
    """10,000 damaged images are refused; so is what needs other pools, kernels, runtime, NPU or borders."""
    need(compiler)
    files = sources(tmp_path / "out", "core")
    flags = [compiler, "-std=c11", "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror"]
    host([*flags, *map(str, files), "-o", str(tmp_path / "app")])
    assert host([str(tmp_path / "app")]) == "DONE\n"


@pytest.mark.sweep
@pytest.mark.parametrize("board", firmware.BOARDS)
def test_the_check_on_an_emulated_board(board: str, tmp_path: Path) -> None:
    """Ten thousand damaged images, one by one."""
    need("arm-none-eabi-gcc", "qemu-system-arm")
    core = firmware.BOARDS[board]
    objects = [firmware.compile_source(path, tmp_path, core) for path in sources(tmp_path / "out", "small")]
    assert firmware.run(firmware.link(objects, board, tmp_path), board) == "DONE\n"


def test_the_check_is_small(tmp_path: Path) -> None:
    """With its sentences, at most 2 kB."""
    need("arm-none-eabi-gcc", "arm-none-eabi-size")
    programs.deploy(programs.program("core").buffer, tmp_path / "out")
    for core in firmware.CORES:
        made = firmware.compile_source(tmp_path / "out" / "micronpu_image.c", tmp_path, core, "-Os")
        assert int(host(["arm-none-eabi-size", str(made)]).splitlines()[1].split()[0]) <= 2048


def test_what_is_signed_is_all_but_signature_and_crc() -> None:
    data = image("1.9.3").data
    head = data[: int.from_bytes(data[6:8], "little")]
    covered = signed_part(head)
    assert len(covered) == len(head) - 64 - 4 and head[:SIGNATURE_AT] + head[240:CRC_AT] + head[248:] == covered
    assert head[SIGNATURE_AT : SIGNATURE_AT + 2] == summed(covered)[:2]


def test_a_key_signs_and_its_public_half_verifies(tmp_path: Path) -> None:
    serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization", reason="micronpu[sign]")
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

    def pem(key) -> bytes:
        return key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    key = ed25519.Ed25519PrivateKey.generate()
    for name, data in (("key", pem(key)), ("other", pem(ec.generate_private_key(ec.SECP256R1()))), ("bad", b"text")):
        (tmp_path / f"{name}.pem").write_bytes(data)
    programs.program("core").save(tmp_path / "model.pte")
    command = ["image", str(tmp_path / "model.pte"), "-o", str(tmp_path / "model.img"), "--version", "1.2.0", "--key"]
    done = CliRunner().invoke(app, [*command, str(tmp_path / "key.pem")])
    assert done.exit_code == 0 and "version 1.2.0" in done.output, done.output
    data = (tmp_path / "model.img").read_bytes()
    head = data[: int.from_bytes(data[6:8], "little")]
    key.public_key().verify(head[SIGNATURE_AT : SIGNATURE_AT + 64], signed_part(head))
    for name, words in (("other", "another kind than Ed25519"), ("bad", "no private key"), ("none", "none.pem")):
        (tmp_path / "model.img").unlink(missing_ok=True)
        refused = CliRunner().invoke(app, [*command, str(tmp_path / f"{name}.pem")])
        assert refused.exit_code == 1 and words in " ".join(refused.output.split()), refused.output
        assert not (tmp_path / "model.img").exists()


def test_what_makes_no_image() -> None:
    buffer = programs.program("core").buffer
    for version in ("", "1", "1.2", "1.2.3-rc", "v1.2.3", "99999.0.0"):
        with pytest.raises(OptionError, match="no version"):
            make_image(buffer, version=version)
    with pytest.raises(UnsupportedError, match="laptop only"):
        make_image(programs.program("neutron").buffer, version="1.0.0")
    with pytest.raises(MicroNpuError):
        make_image(buffer[:500], version="1.0.0")
