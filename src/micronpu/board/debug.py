"""The user's gdb on a board: QEMU's debugger has room for one client, which is the board, so the board passes it on.

Stops at the NPU's registers are the board's own and never reach the user; breakpoints, steps, memory and registers are
the user's, while the NPU works.
"""

from __future__ import annotations

import contextlib
import re
import selectors
import socket
from collections.abc import Callable

from micronpu.board.gdb import BoardError, EndedError, Packets
from micronpu.board.machine import Machine

_RESUMES = re.compile(r"c|s|C[0-9a-f]{2}|S[0-9a-f]{2}|vCont;.*", re.DOTALL)
_STEPS = re.compile(r"s|S[0-9a-f]{2}|vCont;[sS].*", re.DOTALL)
_OWN_STOP = re.compile(r"[ra]?watch:([0-9a-f]+);")
_INTERRUPT = "\x03"
_SLICE = 0.5
_LAST_WORDS = 2.0


class DebugServer:
    """Waits for a gdb, on this machine only.

    Args:
        machine: the board; its core stands still.
        port: of TCP; 0 for any that is free.

    Attributes:
        port: where it listens.
    """

    def __init__(self, machine: Machine, port: int = 0) -> None:
        self._machine = machine
        self._listener = socket.socket(socket.AF_INET)
        try:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.bind(("127.0.0.1", port))
            self._listener.listen(1)
        except OSError as error:
            self._listener.close()
            raise BoardError(
                f"Nothing can listen on port {port}: {error.strerror or error}.",
                hint="--port 0, which takes a free one",
            ) from error
        self.port: int = self._listener.getsockname()[1]

    def serve(self, seconds: float | None = None) -> None:
        """Serves one gdb until it leaves, or the firmware ends.

        Args:
            seconds: to wait for it to come; None for ever.

        Raises:
            BoardError: nobody comes.
        """
        self._listener.settimeout(seconds)
        try:
            connection, _ = self._listener.accept()
        except TimeoutError as error:
            raise BoardError(f"No debugger has come to port {self.port} within {seconds:g} seconds.") from error
        finally:
            self._listener.close()
        with connection:
            connection.settimeout(None)
            _Session(self._machine, Packets(connection)).run()
            # A connection that is closed with something unread takes back what was sent: its last words are waited for.
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
                connection.settimeout(_LAST_WORDS)
                while connection.recv(1 << 12):
                    pass


class _Session:
    """One gdb and one board."""

    def __init__(self, machine: Machine, client: Packets) -> None:
        self._machine, self._client, self._stub = machine, client, machine.stub
        self._resumed = ""  # the packet by which the core runs, "" while it stands still
        self._is_over = False

    def run(self) -> None:
        machine = self._machine
        with selectors.DefaultSelector() as selector:
            take: Callable[[], object]
            for source, take in (
                (self._client.connection, self._client.fill),
                (self._stub.connection, self._stub.fill),
                (machine.emulator_output, lambda: machine.poll(0)),
            ):
                selector.register(source, selectors.EVENT_READ, take)
            while not self._is_over:
                self._take_all()
                if self._is_over:
                    break
                for key, _ in selector.select(_SLICE):
                    try:
                        key.data()
                    except EndedError:
                        self._ended(key.fileobj is self._stub.connection)

    def _take_all(self) -> None:
        while not self._is_over and (packet := self._client.pending()) is not None:
            self._from_client(packet)
        while not self._is_over and self._resumed and (packet := self._stub.pending()) is not None:
            self._from_board(packet)

    def _from_client(self, packet: str) -> None:
        if packet == _INTERRUPT:
            self._stub.interrupt()
        elif packet.startswith(("k", "vKill", "D")):
            if not packet.startswith("k"):
                self._client.send("OK")
            self._is_over = True
        elif _RESUMES.fullmatch(packet):
            self._resumed = packet
            self._stub.send(packet)
        else:
            self._stub.send(packet)
            self._client.send(self._stub.receive())

    def _from_board(self, packet: str) -> None:
        """What QEMU says while the core runs."""
        own = _OWN_STOP.search(packet)
        if packet.startswith("F"):
            self._machine.answer_host(packet)
        elif own is not None and self._machine.is_own(int(own[1], 16)):
            self._machine.answer()
            if _STEPS.fullmatch(self._resumed):
                self._stopped(_OWN_STOP.sub("", packet))
            else:
                self._stub.send(self._resumed)
        else:
            if packet[:1] in "WX":
                self._machine.finish()
                self._is_over = True
            self._stopped(packet)

    def _stopped(self, packet: str) -> None:
        self._resumed = ""
        self._client.send(packet)

    def _ended(self, board: bool) -> None:
        """One of the two has hung up; what QEMU has said before still counts."""
        self._take_all()
        if board and not self._is_over:
            self._machine.finish()
            self._client.send(f"W{self._machine.status or 0:02x}")
        self._is_over = True
