"""The user's gdb on a board: QEMU's debugger accepts one client, the board, which forwards packets.

Stops at the NPU's registers belong to the board and are hidden from the user; breakpoints, steps, memory and registers
are available while the NPU runs.
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
    """Server for one gdb, on this machine only.

    Args:
        machine: the board; its core is stopped.
        port: of TCP; 0 for any that is free.
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
                f"Cannot listen on port {port}: {error.strerror or error}.", hint="--port 0, which takes a free one"
            ) from error
        self.port: int = self._listener.getsockname()[1]

    def serve(self, seconds: float | None = None) -> None:
        """Serve one gdb until it leaves, or the firmware ends.

        Args:
            seconds: time to wait for a connection; None for no limit.
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
            # Closing a connection with unread data discards sent data, so wait until the client has closed.
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
                connection.settimeout(_LAST_WORDS)
                while connection.recv(1 << 12):
                    pass


class _Session:
    """One gdb and one board."""

    def __init__(self, machine: Machine, client: Packets) -> None:
        self._machine, self._client, self._stub = machine, client, machine.stub
        self._resumed = ""  # the packet that resumed the core, "" while it is stopped
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
        elif packet == "?":  # at which QEMU would remove the watchpoints on the NPU's registers
            self._client.send("S05")
        elif _RESUMES.fullmatch(packet):
            self._resumed = packet
            self._stub.send(packet)
        else:
            self._client.send(self._stub.answer(packet, self._client.send))

    def _from_board(self, packet: str) -> None:
        """Handle a packet of QEMU while the core runs."""
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
        """Handle the end of a connection; earlier packets of QEMU still count."""
        self._take_all()
        if board and not self._is_over:
            self._machine.finish()
            self._client.send(f"W{self._machine.status or 0:02x}")
        self._is_over = True
