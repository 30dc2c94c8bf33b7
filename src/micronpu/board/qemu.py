"""QEMU as a process: found, started, controlled over one private socket, and ended with its parent."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from micronpu.board.gdb import BoardError, SilentError, Stub

QEMU = "qemu-system-arm"
OLDEST = (7, 2)
"""The oldest tested version: Debian 12's."""
_INSTALL = {
    "linux": "apt-get install qemu-system-arm, or the package of that name of another Linux",
    "darwin": "brew install qemu",
    "win32": "WSL, and apt-get install qemu-system-arm in it",
}
_ANSWER_SECONDS = 20.0
_ATTEMPTS = 3
_END_SECONDS = 10.0
# The shell starts the command and a reader of the shell's standard input, whose other end only the parent holds: if the
# parent ends in any way, the reader wakes up and ends the whole group.  This works on every Unix.
_WATCHED = (
    'exec 9<&0; "$@" 9<&- </dev/null & command=$!; '
    "(read -r line <&9; kill -9 0) >/dev/null 2>&1 & reader=$!; "
    "exec 9<&-; wait $command; status=$?; kill $reader 2>/dev/null; exit $status"
)
_SHELLS_OWN_DESCRIPTOR = 9


def watched(command: Sequence[str]) -> list[str]:
    """Return a command that ends with this process; it needs a pipe as its input, and a new session."""
    return ["/bin/sh", "-c", _WATCHED, "sh", *command]


def how_to_install() -> str:
    return _INSTALL.get(sys.platform, _INSTALL["linux"])


@functools.cache
def find_qemu() -> tuple[str, tuple[int, ...]]:
    """Return the emulator's path and version."""
    path = shutil.which(QEMU)
    if path is None:
        raise BoardError(f"The emulated boards need QEMU, and there is no {QEMU}.", hint=how_to_install())
    try:
        output = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=_ANSWER_SECONDS).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BoardError(f"{path} does not run: {error}.", hint=how_to_install()) from error
    match = re.search(r"version (\d+)\.(\d+)", output)
    if match is None:
        raise BoardError(f"{path} does not say which version of QEMU it is.", hint=how_to_install())
    version = (int(match[1]), int(match[2]))
    if version < OLDEST:
        wanted, found = (".".join(map(str, v)) for v in (OLDEST, version))
        raise BoardError(f"{path} is QEMU {found}, and the emulated boards need {wanted}.", hint=how_to_install())
    return path, version


class Emulator:
    """A running QEMU whose core is stopped until it is resumed.

    Args:
        machine: QEMU's name, such as "mps3-an547".
        image: an ELF file for the core.
        data: files that are in memory from the start, by address.

    Attributes:
        stub: its debugger.
        output: a pipe with the firmware's output on its UART and through semihosting.
    """

    def __init__(self, machine: str, image: Path, data: Sequence[tuple[Path, int]] = ()) -> None:
        path, _ = find_qemu()
        command = [path, "-M", machine, "-display", "none", "-monitor", "none", "-serial", "stdio", "-S"]
        # The debugger gets semihosting calls but console output, and refuses them: firmware must not access files here.
        command += ["-semihosting-config", "enable=on,target=gdb", "-kernel", str(image)]
        for file, address in data:
            escaped = str(file).replace(",", ",,")
            command += ["-device", f"loader,file={escaped},addr={address:#x},force-raw=on"]
        for attempt in range(_ATTEMPTS):
            try:
                self._start(path, command)
                return
            except SilentError:
                # Happens once in a thousand starts on a busy machine; the next attempt succeeds.
                self.close()
                if attempt + 1 == _ATTEMPTS:
                    raise
            except BoardError as error:
                said = self._said()
                self.close()
                raise BoardError(f"QEMU does not start the board: {said or error.what}") from error

    def _start(self, path: str, command: Sequence[str]) -> None:
        with _listening() as listener:
            debugger = ["-chardev", f"socket,id=gdb,fd={listener.fileno()},server=on,wait=off", "-gdb", "chardev:gdb"]
            self._connection = socket.socket(listener.family)
            try:
                self._process = subprocess.Popen(
                    watched([*command, *debugger]),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    pass_fds=[listener.fileno()],
                    start_new_session=True,  # Ctrl-C on the terminal is for the parent, which then ends QEMU
                )
                assert isinstance(self._process.stdout, io.BufferedReader)
                self.output = self._process.stdout
                self._connection.settimeout(_ANSWER_SECONDS)
                self._connection.connect(listener.getsockname())
            except OSError as error:
                raise BoardError(f"{path} cannot be started: {error.strerror or error}.") from error
        self.stub = Stub(self._connection, _ANSWER_SECONDS)

    def _said(self) -> str:
        """Return QEMU's error message, or ""."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        lines = self.output.read().decode(errors="replace").splitlines()
        output = [line.split(": ", 1)[1] for line in lines if line.startswith("qemu") and ": " in line]
        return output[0].rstrip(".:") + "." if output else ""

    def wait(self) -> int:
        """Return the exit status of an ending QEMU."""
        try:
            return self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise BoardError("QEMU does not end.") from error

    def close(self) -> None:
        """End QEMU if it still runs, and remove its files."""
        self._connection.close()
        if self._process.stdin is not None and not self._process.stdin.closed:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.output.close()


@contextlib.contextmanager
def _listening() -> Iterator[socket.socket]:
    """A listening socket for QEMU to inherit, so that no connection attempt comes too early.

    It is a Unix socket in a private folder, or TCP on this machine if there are none.
    """
    with contextlib.ExitStack() as stack:
        if hasattr(socket, "AF_UNIX"):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="micronpu-"))
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(os.path.join(folder, "gdb"))
        else:
            listener = stack.enter_context(socket.socket(socket.AF_INET))
            listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        if listener.fileno() == _SHELLS_OWN_DESCRIPTOR:
            listener = stack.enter_context(listener.dup())
        yield listener
