"""GDB servers that send what they should not: every question ends, and nothing that they print is obeyed."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from micronpu.board.gdb import BoardError, Packets
from micronpu.board.probe import ProbeOptions, run_on_probe
from micronpu.board.remote import Remote, _expanded, read_map
from micronpu.cli.board import _print_bytes
from tests.board.gdb_server import Board, served, written


def framed(data: bytes) -> bytes:
    return b"$" + data + b"#%02x" % (sum(data) & 255)


@contextlib.contextmanager
def flooding(data: bytes) -> Iterator[str]:
    """A server that sends one thing without end."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            while True:
                connection.sendall(data)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    listener.close()
    thread.join(10)


@pytest.mark.sweep
@pytest.mark.parametrize("data", [framed(b"O6869"), b"+" * 4096, b"$" + b"a" * 4096, framed(b"OK")[:-2] + b"zz"])
def test_a_server_that_sends_without_end(data: bytes) -> None:
    """Packets with text are packets, but no answers."""
    with flooding(data) as address, pytest.raises(BoardError, match=r"did not answer within 0\.5 seconds"):
        Remote(address, 0.5)


def test_a_firmware_that_prints_without_end(tmp_path: Path) -> None:
    board = Board()
    real = board.answer
    writes = "Fwrite,1,20000000,400"
    board.answer = lambda packet: writes if packet[:1] in "cF" else real(packet)  # type: ignore[method-assign]
    with served(board) as address, pytest.raises(BoardError, match="within 1 seconds"):
        run_on_probe(written(tmp_path / "f.elf"), ProbeOptions(address, seconds=1))


def test_packets_with_wrong_checksums_are_asked_for_again() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"+++$OK#00$OK#zz" + framed(b"OK"))
        assert Packets(ours).receive() == "OK"
        assert theirs.recv(100) == b"--+"


def test_a_run_repeats_one_letter() -> None:
    assert _expanded("a*~*~") == "a" * 195
    assert _expanded("0* ") == "0000"


@pytest.mark.parametrize(
    "text", ["<memory " * 8000, "<memory " + "a" * 60_000 + ">", "<memory " + "a='" * 20_000 + ">"]
)
def test_patterns_of_a_map_take_no_square_of_its_length(text: str) -> None:
    with contextlib.suppress(BoardError):
        read_map(text)


@pytest.mark.parametrize("numbers", [("-5", "8"), ("0", "-5"), ("0", "0x" + "f" * 600), ("9" * 5000, "4")])
def test_memories_outside_of_the_address_space(numbers: tuple[str, str]) -> None:
    with pytest.raises(BoardError, match="memory map is damaged"):
        read_map('<memory type="ram" start="{}" length="{}"/>'.format(*numbers))


def test_a_map_that_is_too_long() -> None:
    with served(Board(memory_map="<" * 70_000)) as address, pytest.raises(BoardError, match="more than 65,536"):
        Remote(address, 20)


@pytest.mark.parametrize(
    ("packet", "status"), [("W100", 1), ("W1ff", 255), ("W00;process:1", 0), ("W" + "f" * 5000, 255)]
)
def test_exit_statuses_beyond_a_byte(packet: str, status: int, tmp_path: Path) -> None:
    board = Board()
    real = board.answer
    board.answer = lambda given: packet if given == "c" else real(given)  # type: ignore[method-assign]
    with served(board) as address:
        assert run_on_probe(written(tmp_path / "f.elf"), ProbeOptions(address, seconds=20)).exit_code == status


def test_the_console_is_shown_without_what_a_terminal_obeys(capsys: pytest.CaptureFixture[str]) -> None:
    _print_bytes(b"\x1b[31mred\x1b]0;title\x07\tok\r\n\x04")
    assert capsys.readouterr().out == "\\x1b[31mred\\x1b]0;title\\x07\tok\n"
