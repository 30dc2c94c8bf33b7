"""Any firmware on emulated boards: accesses in every form, interrupts, errors, exit status, files of the host."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from micronpu.base.errors import OptionError
from micronpu.board import BoardError
from micronpu.board.boards import boards, find_board
from micronpu.board.check import Finished, MachineOptions, run_firmware
from micronpu.board.debug import DebugServer
from micronpu.board.elf import Elf
from micronpu.board.gdb import PC, Stub
from micronpu.board.machine import Machine
from micronpu.board.probe import ProbeOptions, run_on_probe
from micronpu.program.pte import read_pte
from micronpu.targets.ethosu.payload import parse
from micronpu.targets.ethosu.stream import words_of
from tests.board.needed import need_qemu
from tests.deploy import firmware
from tests.tools import need

SOURCES = Path(__file__).parent / "firmware"
GOLDEN = Path(__file__).parents[1] / "golden"
JOB, STREAM, CONSTANTS, SCRATCH = 0x70400000, 0x70410000, 0x70480000, 0x31100000
SECURE = 0x10000000
KINDS = [("ethosu-litert", "corstone300", 0), ("ethosu-tosa", "corstone320", 2), ("ethosu-litert", "alif-e7-he", 0)]


def built(name: str, folder: Path, board: str = "mps3-an547") -> Path:
    need("arm-none-eabi-gcc", "qemu-system-arm")
    need_qemu()
    core = firmware.BOARDS[board]
    relaxed = ("-Wno-pedantic", "-Wno-conversion", "-Wno-int-to-pointer-cast", "-Wno-pointer-to-int-cast")
    return firmware.link([firmware.compile_source(SOURCES / name, folder, core, *relaxed)], board, folder)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("npu.c", tmp_path_factory.mktemp("driver"))


def job(
    kind: str,
    board: str,
    product: int,
    folder: Path,
    *,
    stream: bytes | None = None,
    wrong: int = 0,
    scratch: tuple[int, int] = (SCRATCH, SCRATCH),
) -> list:
    """What the driver is to run, as files in the board's memory."""
    held = parse(read_pte((GOLDEN / f"{kind}.pte").read_bytes()).payloads[0][1])
    arrays = np.load(GOLDEN / f"{kind}.npz")
    words = np.array(words_of(held.commands), "<u4").tobytes() if stream is None else stream
    place = boards()[board].npus[0]
    mine, seen = scratch  # as the core and as the NPU have it
    output = mine + held.outputs[0].address
    expected = bytearray(arrays["output_0"].tobytes())
    expected[0] ^= wrong
    head = struct.pack("<10I", place.base + SECURE, place.irq, STREAM, len(words), CONSTANTS, seen, seen, output,
                       len(expected), product)  # fmt: skip
    files = {
        JOB: head + expected,
        STREAM: words,
        CONSTANTS: bytes(held.constants),
        mine + held.inputs[0].address: arrays["input_0"].tobytes(),
    }
    made = []
    for address, content in files.items():
        path = folder / f"{address:x}, {kind}.bin"  # a comma, which QEMU's options are separated by
        path.write_bytes(content)
        made.append((path, address))
    return made


def run(image: Path, board: str, data: list, **options: object) -> Finished:
    return run_firmware(image, board, MachineOptions(seconds=60, **options), data=data)  # type: ignore[arg-type]


@pytest.mark.sweep
@pytest.mark.parametrize(("kind", "board", "product"), KINDS)
def test_a_driver_of_ones_own(driver: Path, kind: str, board: str, product: int, tmp_path: Path) -> None:
    """U55, and U85, for which Arm's runners do not load."""
    done = run(driver, board, job(kind, board, product, tmp_path))
    assert (done.output, done.status) == ("PASS: 4 bytes after a short wait\n", 0)
    assert len(done.runs) == 1 and done.accesses > 30 and done.runs[0].cycles > 0
    done = run(driver, board, job(kind, board, product, tmp_path, wrong=1))
    assert done.output.startswith("FAIL: element 0 is") and done.status == 1


def test_memories_of_a_chip(driver: Path, tmp_path: Path) -> None:
    """What the chip's file says of the machine's memories: TCMs and MRAM, and no SRAM."""
    extra = tmp_path / "extra.bin"
    extra.write_bytes(bytes(64))
    data = job("ethosu-litert", "alif-e7-he", 0, tmp_path)
    for address in (0x20030000, 0x80000000):
        assert run(driver, "alif-e7-he", [*data, (extra, address)]).status == 0
    with pytest.raises(BoardError, match="alif-e7-he has no memory at 0x2000000"):
        run(driver, "alif-e7-he", [*data, (extra, 0x02000000)])
    with pytest.raises(OptionError, match="The board alif-e7-he has no ethos-u65-256"):
        run(driver, "alif-e7-he", data, npu="ethos-u65-256")
    assert find_board("alif-e7-hp").usual == "ethos-u55-256"
    # The NPU has the data TCM at another address than the core.
    for seen, status in ((0x50830000, 0), (0x20030000, 0), (0x58830000, 4)):
        data = job("ethosu-litert", "alif-e7-hp", 0, tmp_path, scratch=(0x20030000, seen))
        assert run(driver, "alif-e7-hp", data, npu="ethos-u55-128").status == status


def test_interrupts_come_late(driver: Path, tmp_path: Path) -> None:
    """At this clock the run takes a quarter of a second, in which the core goes on."""
    done = run(driver, "corstone300", job(*KINDS[0], tmp_path), clock_mhz=0.002)
    assert (done.output, done.status) == ("PASS: 4 bytes after a long wait\n", 0)


def test_errors_of_the_npu(driver: Path, tmp_path: Path) -> None:
    done = run(driver, "corstone300", job(*KINDS[0], tmp_path), fault="bus")
    assert done.output.startswith("NPU error, status 0x4, 0 of") and done.status == 4
    done = run(driver, "corstone300", job(*KINDS[0], tmp_path, stream=b"\xff\x03\x00\x00" * 4))
    assert done.output.startswith("NPU error, status 0x10") and done.status == 4
    assert done.runs[0].fault and not done.runs[0].written
    with pytest.raises(BoardError, match=r"did not end within 2 seconds"):
        run_firmware(driver, "corstone300", MachineOptions(seconds=2, fault="hang"), data=job(*KINDS[0], tmp_path))
    done = run(driver, "corstone300", job(*KINDS[0], tmp_path), npu="ethos-u65-256")
    assert "FAIL: NPU[CONFIG] >> 28 == JOB->product" in done.output and done.status == 2


@pytest.mark.parametrize("board", firmware.BOARDS)
def test_no_file_and_no_command_of_the_host(board: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = built("files.c", tmp_path, board)
    monkeypatch.chdir(tmp_path)
    done = run_firmware(image, "corstone300" if board == "mps3-an547" else board, MachineOptions(seconds=60))
    assert (done.output, done.status) == ("open -1\nsystem -1\n", 5)
    assert not (tmp_path / "stolen.txt").exists()


def test_command(driver: Path, tmp_path: Path) -> None:
    data = [f"--data={path}@{address:#x}" for path, address in job(*KINDS[0], tmp_path, wrong=1)]
    command = [sys.executable, "-m", "micronpu.cli", "board", "run", str(driver), "--trace", *data]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stderr
    assert "FAIL: element 0" in done.stdout and "changed in memory:" in done.stdout and "convolution" in done.stdout
    assert "[board: exit status 1;" in done.stderr and "the least that MACs" in done.stderr


def test_what_is_refused(driver: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"has no ethos-u85-256"):
        run_firmware(driver, "corstone300", MachineOptions(npu="ethos-u85-256"))
    nowhere = tmp_path / "data.bin"
    nowhere.write_bytes(b"12345678")
    with pytest.raises(BoardError, match=r"no memory at 0x48200000"):
        run_firmware(driver, "corstone300", MachineOptions(seconds=5), data=[(nowhere, 0x48200000)])


def test_nothing_is_left_when_the_parent_is_gone(driver: Path, tmp_path: Path) -> None:
    """A parent that is killed takes QEMU with it."""
    script = f"""
import os
from pathlib import Path
from micronpu.board.boards import find_board
from micronpu.board.machine import Machine
from tests.tools import need
machine = Machine(find_board("corstone300"), Path({str(driver)!r}), ["ethos-u55-128"])
shell = machine._emulator._process.pid
print(*Path(f"/proc/{{shell}}/task/{{shell}}/children").read_text().split(), flush=True)
os.kill(os.getpid(), 9)
"""
    if not Path("/proc/self/cmdline").exists() or not hasattr(os, "pidfd_open"):
        pytest.skip("looks at processes of Linux")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    pids = [int(word) for word in done.stdout.split()]
    assert pids, done.stderr

    # The system says when a process has ended; the limit only ends a test of what never does.
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # it has ended already
            handle = os.pidfd_open(pid)
            try:
                is_qemu = b"qemu" in Path(f"/proc/{pid}/cmdline").read_bytes()
                assert not is_qemu or select.select([handle], [], [], 300)[0], f"QEMU lives on as process {pid}"
            except FileNotFoundError:
                pass
            finally:
                os.close(handle)


def test_a_debugger_of_the_users(driver: Path, tmp_path: Path) -> None:
    """Breakpoints, steps over accesses to the NPU, memory: the board's own stops do not show."""
    with Machine(find_board("corstone300"), driver, ["ethos-u55-128"], data=job(*KINDS[0], tmp_path)) as machine:
        server = DebugServer(machine)
        with ThreadPoolExecutor(1) as pool:
            served = pool.submit(server.serve, 30)
            with socket.create_connection(("127.0.0.1", server.port)) as connection:
                gdb = Stub(connection, 30)
                handler = Elf.read(driver).symbol("handler")
                gdb.break_at(handler)
                assert gdb.ask("c").startswith("T05")
                registers = gdb.registers()
                assert registers[PC] == handler & ~1 and registers[16] & 0x1FF == 16 + 56  # in the interrupt
                assert gdb.read(JOB + 36, 4) == bytes(4)
                gdb.unbreak_at(handler)
                for _ in range(12):  # over the store that takes the interrupt
                    assert "watch" not in gdb.ask("s")
                assert machine.accesses > 25 and not machine.npus[0].load(4) & 2
                assert gdb.ask("c").startswith("W00")
            served.result(timeout=30)
        assert machine.output == b"PASS: 4 bytes after a short wait\n"


def test_through_a_gdb_server(driver: Path, tmp_path: Path) -> None:
    """As on a real board: Corstone-300 with its NPU behind a connection, from writing to the exit status."""
    for wrong in (0, 1):
        files = job(*KINDS[0], tmp_path, wrong=wrong)
        with Machine(find_board("corstone300"), driver, ["ethos-u55-128"], data=files) as machine:
            server = DebugServer(machine)
            with ThreadPoolExecutor(1) as pool:
                served = pool.submit(server.serve, 30)
                done = run_on_probe(driver, ProbeOptions(f"127.0.0.1:{server.port}", seconds=60))
                served.result(timeout=30)
            assert done.status == wrong and done.board.startswith("Cortex-M55") and len(machine.npus[0].runs) == 1


def test_nobody_debugs(driver: Path) -> None:
    with Machine(find_board("corstone300"), driver, ["ethos-u55-128"]) as machine:
        server = DebugServer(machine)
        with pytest.raises(BoardError, match=f"annot listen on port {server.port}"):
            DebugServer(machine, server.port)
        with pytest.raises(BoardError, match="No debugger has come"):
            server.serve(0.1)
