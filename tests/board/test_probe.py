"""Firmware on boards behind GDB servers: written, run, compared; and every way in which that fails."""

from __future__ import annotations

import base64
import json
import os
import random
import struct
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from micronpu.base.errors import MicroNpuError, OptionError
from micronpu.board import probe
from micronpu.board.elf import Elf
from micronpu.board.faults import decode
from micronpu.board.gdb import BoardError
from micronpu.board.logs import read_measurement
from micronpu.board.probe import ExpectedOutputs, ProbeOptions, flash, run_on_probe
from micronpu.board.remote import Remote, RemoteMemory, read_map
from micronpu.cli.main import app
from tests.board import gdb_server
from tests.board.gdb_server import FLASH, M4, M33, RAM, Board, image, served, written
from tests.board.needed import need_qemu
from tests.deploy import firmware
from tests.tools import need

PASS = b"PASS: 1 vectors, 0 elements differ\n"
OUTPUT = "micronpu-output net 0 0 int8:1x4:0,1 4 0 {}\n"


def run(board: Board, path: Path, **more: object) -> probe.ProbeRun:
    with served(board) as address:
        return run_on_probe(path, ProbeOptions(address, seconds=20), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("by", ["file", "breakpoint", "output"])
@pytest.mark.parametrize("status", [0, 3])
def test_from_flash_to_the_exit_status(by: str, status: int, tmp_path: Path) -> None:
    """Bytes that need escapes, a part in RAM, the console in each form; the status is the firmware's."""
    path = written(tmp_path / "f.elf", (RAM + 0x100, b"data"))
    board = Board(by=by, status=status, console=(b"one\n", PASS))
    heard: list[bytes] = []
    done = run(board, path, console=heard.append)
    assert done.status == done.exit_code == status and done.output == b"one\n" + PASS == b"".join(heard)
    assert bytes(board.memories[FLASH][8:264]) == bytes(range(256)) and board.memories[RAM][0x100:0x104] == b"data"
    assert board.seen.count("qRcmd," + b"reset halt".hex()) == 2 and not done.note  # behind writing flash, once more
    assert next(done.lines()).startswith(f"{'FAIL' if status else 'PASS'}: f.elf on Cortex-M4 at 127.0.0.1:")


def test_ram_alone_starts_at_its_vectors(tmp_path: Path) -> None:
    path = tmp_path / "ram.elf"
    path.write_bytes(image([(RAM, struct.pack("<2I", RAM + 0x400, RAM + 0x11) + bytes(64))], RAM + 0x11))
    board = Board(resets=())
    done = run(board, path)
    assert done.status == 0 and "not reset" in done.note
    assert board.registers[13:17:1] == [RAM + 0x400, 0, RAM + 0x10, 1 << 24]
    assert struct.unpack_from("<I", board.memories[gdb_server.DEBUG], 0xD08) == (RAM,)


def test_outputs_beside_this_machines(tmp_path: Path) -> None:
    """Element for element: PASS, the first difference, another program, other vectors, none at all."""
    path = written(tmp_path / "f.elf")
    rows = SimpleNamespace(inputs=[()], outputs=[(np.array([[1, 2, 3, 4]], np.int8),)])
    wanted = ExpectedOutputs.of("net", b"payload", rows)
    lines = OUTPUT.format("AQIDBA==").encode() + PASS
    done = run(Board(console=(lines,)), path, reference=wanted)
    assert (done.exit_code, done.compared.elements, done.compared.differing) == (0, 4, 0)
    done = run(Board(console=(OUTPUT.format("AQIDBQ==").encode() + PASS,)), path, reference=wanted)
    assert done.exit_code == 1 and "vector 0, output 0, element 3: the board has 5, this machine 4" in str(
        done.compared.first
    )
    other = f"micronpu-program net {'ab' * 32}\n".encode() + lines
    for console, said in (
        (other, "is of another program"),
        (
            lines.replace(b" net ", b" two ") + lines.replace(b" net ", b" three "),
            "does not have output 0 of vector 0 of net",
        ),
        (PASS, "prints no outputs"),
    ):
        with pytest.raises(BoardError, match=said):
            run(Board(console=(console,)), path, reference=wanted)


@pytest.mark.sweep
def test_lost_at_any_packet(tmp_path: Path) -> None:
    """200 connections that end at some packet: one message with the step, and nothing else."""
    path = written(tmp_path / "f.elf", (RAM + 0x100, b"data"))
    whole = Board(by="breakpoint", console=(b"one\n", PASS))
    run(whole, path)
    random.seed(45)
    steps = set()
    for number in range(200):
        drop = number + 1 if number < len(whole.seen) else random.randint(1, len(whole.seen))
        by = "breakpoint" if number < len(whole.seen) else "file"
        board = Board(by=by, console=(b"one\n", PASS), drop=drop)
        try:
            run(board, path)
            assert len(board.seen) < drop  # the other console takes fewer packets
        except BoardError as error:
            assert error.what.startswith("The connection to the GDB server at 127.0.0.1:"), error
            steps.add(error.what.rpartition(" while ")[2])
    assert steps == {
        *("connecting.", "resetting the board.", "writing flash.", "writing RAM.", "reading the firmware back."),
        "the firmware ran.",
    }


@pytest.mark.parametrize(
    ("board", "firmware_options", "said"),
    [
        ({"cpuid": 0x410CC200}, {}, "is for Armv7E-M, and the board has a Cortex-M0 (Armv6-M)"),
        ({"cpuid": M4}, {"architecture": 21}, "is for Armv8.1-M.main, and the board has a Cortex-M4 (Armv7E-M)"),
        ({"locked": True}, {}, r"could not erase flash at 0x8000000: it answers 'E.Flash is locked'"),
        ({"flips": True}, {}, r"The memory at 0x8000000 reads back as 0x01 where 0x00 was written."),
        ({"memory_map": ""}, {}, "reads back as 0xff where 0x00 was written; the GDB server describes no memories"),
        ({"memory_map": gdb_server.MAP.replace("0x8000000", "0x9000000")}, {}, "has 2,312 bytes at 0x8000000, where"),
        ({"memory_map": '<memory type="ram" start="0"/>'}, {}, "memory map is damaged"),
        ({"memory_map": '<memory type="flash" start="0" length="9"></memory>'}, {}, "no block size for flash 0x0"),
    ],
)  # fmt: skip
def test_what_cannot_be_written(board: dict, firmware_options: dict, said: str, tmp_path: Path) -> None:
    path = written(tmp_path / "f.elf", **firmware_options)
    under = Board(**board)
    with served(under) as address, pytest.raises(BoardError) as error:
        flash(path, ProbeOptions(address, seconds=20))
    assert said in error.value.what and not any(packet == "c" for packet in under.seen)


def test_images_for_other_machines(tmp_path: Path) -> None:
    for options, said in (({"machine": 183}, "is for another core"), ({"machine": 62}, "is for another core")):
        with pytest.raises(BoardError, match=said):
            flash(written(tmp_path / "f.elf", **options), ProbeOptions("localhost:1"))
    (tmp_path / "f.bin").write_bytes(bytes(100))
    with pytest.raises(BoardError, match="is no ELF file"):
        flash(tmp_path / "f.bin", ProbeOptions("localhost:1"))
    (tmp_path / "empty.elf").write_bytes(image([], 0))
    with served(Board()) as address, pytest.raises(BoardError, match="contains nothing to load"):
        flash(tmp_path / "empty.elf", ProbeOptions(address))
    with pytest.raises(BoardError, match=r"There is no GDB server at 127\.0\.0\.1:9"):
        flash(written(tmp_path / "f.elf"), ProbeOptions("127.0.0.1:9"))
    with pytest.raises(OptionError, match="is no HOST:PORT"):
        flash(tmp_path / "f.elf", ProbeOptions("localhost"))


def test_a_memory_without_ram(tmp_path: Path) -> None:
    path = written(tmp_path / "f.elf", (0x60000000, b"data"))
    for memory_map, said in (("", "no RAM at 0x60000000"), (gdb_server.MAP, "at 0x60000000, where the board has no")):
        board = Board(memory_map=memory_map)
        with served(board) as address, pytest.raises(BoardError, match=said):
            flash(path, ProbeOptions(address, seconds=20))


def test_a_fault_is_decoded(tmp_path: Path) -> None:
    done = run(Board(console=(b"before\n",), fault=0x8200), written(tmp_path / "f.elf"))
    assert done.exit_code == 1 and done.output == b"before\n"
    assert "hard fault: data access to no memory" in done.fault and "address 0x00001234 (BFAR)" in done.fault
    assert f"at {FLASH + 0x30:#010x}, called from {FLASH + 0x20:#010x}" in done.fault
    assert "MMFAR" in decode(0x82, 0, 5) and "no bit says why" in decode(0)
    printed = b"FAULT cfsr 0x10000\npc 0x8000030\nlr 0x8000021\n"
    done = run(Board(console=(printed,), status=3), written(tmp_path / "f.elf"))
    assert done.status == 3 and "undefined instruction" in done.fault


class Port:
    """A serial port with what has been sent so far."""

    def __init__(self, *parts: bytes) -> None:
        self.parts = list(parts)

    def read(self, size: int) -> bytes:
        return self.parts.pop(0) if self.parts else b""

    def close(self) -> None:
        pass


def test_the_console_on_a_serial_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A verdict in parts ends the run; another baud rate and silence are named, with the state of the NPU."""
    path = written(tmp_path / "f.elf")
    monkeypatch.setattr(probe, "npus_of", lambda remote, elf: "ethos-u55: still running")
    for parts, seconds, said in (
        ((b"FAIL: 1 vectors, ", b"2 elements differ\n"), 20, ""),
        (
            (b"\xf8\x00\x80" * 9,),
            1,
            "has 27 bytes that are no text within 1 seconds; the core is at 0x00000000; ethos-u55: still running",
        ),
        ((), 1, "has printed nothing within 1 seconds"),
        ((b"boot\nvector 0\n",), 1, "its last line is 'vector 0'"),
    ):
        monkeypatch.setattr(probe, "open_serial", lambda text, parts=parts: Port(*parts))
        with served(Board(by="serial", console=(), status=None)) as address:
            options = ProbeOptions(address, serial="x@1", seconds=seconds)
            if not said:
                assert run_on_probe(path, options).status == 1
                continue
            with pytest.raises(BoardError, match=said):
                run_on_probe(path, options)


def misread(data: bytes, sent: int, received: int) -> bytes:
    """What a UART at another baud rate reads: it waits for a start bit, and samples eight bits in their middle."""
    frames = [bit for byte in data for bit in (0, *(byte >> i & 1 for i in range(8)), 1)]
    ratio, at, found = sent / received, 0.0, bytearray()
    line = [*frames, *([1] * int(10 * ratio + 2))]
    while 0 in line[int(at) :]:
        at = at if line[int(at)] == 0 else float(line.index(0, int(at)))
        found.append(sum(line[int(at + ratio * (1.5 + i))] << i for i in range(8)))
        at += ratio * 9.5
        at = at if line[int(at)] == 1 else float(line.index(1, int(at)))
    return bytes(found)


def test_another_baud_rate_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every pair of rates, wherever the port begins to listen; a byte that looks like the end mark ends nothing."""
    rates = (9600, 19200, 38400, 57600, 115200, 230400, 460800, 921600)
    text = b"micronpu-program model 0123456789abcdef\r\nmicronpu-run model 0 0 126426\r\n" + PASS
    pairs = [(sent, received) for sent in rates for received in rates]
    wrong = [misread(text[start:] + text, *pair) for pair in pairs if pair[0] != pair[1] for start in range(4)]
    assert len(wrong) > 200 and all(map(probe.is_garbled, wrong))
    assert misread(text, 9600, 9600) == text and not probe.is_garbled(text)
    marked = [console for console in wrong if b"\x04" in console]
    assert marked
    monkeypatch.setattr(probe, "open_serial", lambda text: Port(marked[0]))
    board = Board(by="serial", console=(), status=None)
    with served(board) as address, pytest.raises(BoardError, match="bytes that are no text"):
        run_on_probe(written(tmp_path / "f.elf"), ProbeOptions(address, serial="x@1", seconds=20))


def test_a_real_port(tmp_path: Path) -> None:
    serial = pytest.importorskip("serial")
    assert serial.VERSION
    master, slave = os.openpty()
    port = probe.open_serial(f"{os.ttyname(slave)}@115200")
    os.write(master, PASS.strip())
    found = b""
    while len(found) < len(PASS.strip()):
        found += port.read(100)
    port.close()
    assert found == PASS.strip()
    with pytest.raises(BoardError, match="cannot be opened"):
        probe.open_serial(f"{tmp_path}/none@9600")
    for text in ("COM1", "@9600", "COM1@fast"):
        with pytest.raises(OptionError, match=r"is no PORT@BAUD"):
            probe.open_serial(text)


def test_memory_maps() -> None:
    regions = read_map(gdb_server.MAP)
    assert regions == (RemoteMemory("flash", FLASH, 0x8000, 0x800), RemoteMemory("ram", RAM, 0x10000))
    assert read_map("<nothing/>") == ()


def test_answers_that_mean_nothing(tmp_path: Path) -> None:
    """A server that answers anything to any packet: an error of ours, and no other."""
    path = written(tmp_path / "f.elf")
    random.seed(1)
    for _ in range(60):
        board = Board()
        answers, real = random.Random(random.random()), board.answer
        texts = ("", "E01", "OK", "x", "zz", "*", "}", "F,", "T05", "l", "m" + "a" * 70, "O", "00", "ffffffff", "W")
        board.answer = (  # type: ignore[method-assign]
            lambda packet, answers=answers, real=real, texts=texts: (
                answers.choice(texts) if answers.random() < 0.1 else real(packet)
            )
        )
        try:
            with served(board) as address:
                run_on_probe(path, ProbeOptions(address, seconds=0.5))
        except MicroNpuError:
            pass


# -- QEMU's server


@pytest.mark.parametrize("machine", ["mps2-an505", "mps3-an547"])
@pytest.mark.parametrize("ending", [7, 1])
def test_on_qemus_server(machine: str, ending: int, tmp_path: Path) -> None:
    """A firmware in RAM of a board that QEMU emulates: its console, its exit status, its fault with the line."""
    need_qemu()
    need("arm-none-eabi-gcc")
    source = Path(__file__).parent / "firmware" / "prints.c"
    core = firmware.BOARDS[machine]
    built = firmware.compile_source(source, tmp_path, core, "-g", f"-DENDING={ending}")
    path = firmware.link([built], machine, tmp_path)
    with gdb_server.qemu(machine) as address:
        done = run_on_probe(path, ProbeOptions(address, seconds=120))
    assert done.output.startswith(b"PASS: 2 vectors, 0 elements differ\n") and done.is_emulated
    assert done.board.startswith({"cortex-m33": "Cortex-M33", "cortex-m55": "Cortex-M55"}[core])
    if ending == 7:
        assert done.exit_code == done.status == 7 and not done.fault
    else:
        assert done.exit_code == 3 and "PRECISERR" in done.fault and "in reads_nothing (" in done.fault
        assert "prints.c:1" in done.fault


def test_breakpoints_of_semihosting_on_a_core(tmp_path: Path) -> None:
    """A server without semihosting halts the core at each BKPT: here by a breakpoint on it."""
    need_qemu()
    need("arm-none-eabi-gcc")
    source = Path(__file__).parent / "firmware" / "prints.c"
    built = firmware.compile_source(source, tmp_path, "cortex-m33", "-DENDING=5")
    path = firmware.link([built], "mps2-an505", tmp_path)
    elf = Elf.read(path)
    places = [
        p.address + at for p in elf.parts for at in range(0, len(p.data), 2) if p.data[at : at + 2] == b"\xab\xbe"
    ]
    assert places
    with gdb_server.qemu("mps2-an505") as address, Remote(address, 120) as remote:
        remote.load(elf.parts)
        remote.start_at(elf.entry, elf.vectors)
        for place in places:
            assert remote.ask(f"Z0,{place:x},2") == "OK"
        running = probe._Run(remote, elf, None, ProbeOptions(address), None)
        assert running.to_the_end() == (5, "") and running.output == b"PASS: 2 vectors, 0 elements differ\n"


# -- the command


def test_commands(tmp_path: Path) -> None:
    path = written(tmp_path / "f.elf")
    call = CliRunner().invoke
    cycles = b"micronpu-run net 0 0 1234\n" + PASS
    with served(Board(console=(cycles,))) as address:
        files = ["--log", str(tmp_path / "console.txt"), "--measurement", str(tmp_path / "m.toml")]
        done = call(app, ["board", "run", str(path), "--gdb", address, *files])
    log = read_measurement((tmp_path / "m.toml").read_bytes(), "m.toml")
    assert not log.is_emulated and log.board.startswith("Cortex-M4 at 127.0.0.1:") and log.rows[0].ticks == 1234
    assert done.exit_code == 0 and "net, run: 1,234 cycles" in done.stdout, done.output
    assert (tmp_path / "console.txt").read_bytes() == cycles
    with served(Board(status=4)) as address:
        more = ["--gdb", address, "--measurement", str(tmp_path / "failed.toml")]
        done = call(app, ["board", "run", str(path), *more, "--json"])
    assert not (tmp_path / "failed.toml").exists()
    assert done.exit_code == 4 and json.loads(done.stdout)["passed"] is False
    with served(Board(cpuid=M33)) as address:
        done = call(app, ["board", "flash", str(path), "--gdb", address])
    assert done.exit_code == 0 and "2,312 bytes written to Cortex-M33 and read back." in done.stdout
    golden = Path(__file__).parents[1] / "golden" / "ethosu-litert"
    wanted = np.load(f"{golden}.npz")["output_0"]
    for wrong in (0, 1):
        text = base64.b64encode((wanted ^ np.int8(wrong)).tobytes()).decode()
        line = f"micronpu-output model 0 0 int8:1x4:0,1 4 0 {text}\n".encode()
        with served(Board(console=(line + PASS,))) as address:
            more = ["--gdb", address, "--reference", f"{golden}.pte", "--vectors", f"{golden}.npz"]
            done = call(app, ["board", "run", str(path), *more])
        assert done.exit_code == wrong and f"{4 * wrong} of 4 elements differ from this machine" in done.stdout
    for more, said in (
        (["--serial", "x@1"], "--gdb HOST:PORT"),
        (["--gdb", "localhost:1", "--measurement", str(tmp_path / "no" / "m.toml")], "cannot be written"),
        (["--gdb", "localhost:1", "--trace"], "are for emulated boards"),
        (["--gdb", "localhost:1", "--vectors", "x.npz"], "needs both --reference and --vectors"),
    ):
        done = call(app, ["board", "run", str(path), *more])
        assert done.exit_code == 1 and said in " ".join(done.output.split()), done.output
