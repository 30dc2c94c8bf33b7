"""The peer: ExecuTorch's own Neutron flow (`executorch.backends.nxp`) on a network, in a process of its own.

    python -m benchmarks.peer_nxp dscnn resnet8 chain100

The peers folder is the one that MICRONPU_PEERS names, or else `../shared/peers` beside the repository. It holds a
stand-in for NXP's closed SDK, which converts nothing: the time in `converter` says nothing about the real one.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class PeerError(RuntimeError):
    """The peer is missing, failed, or took too long; the message says which, and what to try."""


def peer_script() -> Path:
    """The script that runs the peer.

    Raises:
        PeerError: there is none.
    """
    folder = Path(os.environ.get("MICRONPU_PEERS") or Path(__file__).resolve().parents[2] / "shared" / "peers")
    script = folder.resolve() / "nxp" / "run_upstream.py"
    if not script.is_file():
        raise PeerError(f"The NXP peer is not at {script}. Try: set MICRONPU_PEERS to the folder that holds nxp/.")
    return script


def measure(
    model: str, *, samples: int = 4, channels_last: bool = False, pte: Path | None = None, time_limit: float = 900.0
) -> dict[str, Any]:
    """Runs the peer on one network of its `models.py` (or `chainN`: N convolution blocks) for i.MX RT700.

    Args:
        model: a name such as "dscnn"; the weights are random with a fixed seed.
        samples: how many random calibration inputs.
        channels_last: whether model and input are in that memory format.
        pte: where to keep the program.
        time_limit: seconds; after them the peer and all that it started are ended.

    Returns:
        The peer's row: node and partition counts, `seconds` per stage and in `total` (without `import`),
        `peak_rss_mib`, `pte_bytes`.

    Raises:
        PeerError: the peer is missing, fails, prints no row, or exceeds the time limit.
    """
    command = [sys.executable, str(peer_script()), model, "--samples", str(samples)]
    if channels_last:
        command.append("--channels-last")
    if pte is not None:
        command += ["--pte", str(pte.resolve())]
    with (
        _ended_by_sigterm(),
        tempfile.TemporaryDirectory() as scratch,
        subprocess.Popen(
            command,
            cwd=scratch,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # so that the peer's own children can be ended with it
        ) as process,
    ):
        try:
            output, errors = process.communicate(timeout=time_limit)
        except BaseException as stop:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            if not isinstance(stop, subprocess.TimeoutExpired):
                raise
            raise PeerError(
                f"The NXP peer did not finish {model!r} in {time_limit:g} s. Try: a longer time_limit."
            ) from None
    if process.returncode != 0:
        last_words = "\n".join(errors.strip().splitlines()[-5:]) or "It printed no error."
        raise PeerError(f"The NXP peer failed on {model!r} with exit code {process.returncode}:\n{last_words}")
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            row: dict[str, Any] = json.loads(line)
            return row
    raise PeerError(f"The NXP peer printed no JSON row for {model!r}.")


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Lets SIGTERM unwind the stack, as an exception, so that the peer in its own session does not outlive us."""

    def stop(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def main() -> None:
    """Command line: one JSON line per network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--time-limit", type=float, default=900.0, metavar="SECONDS")
    options = parser.parse_args()
    for model in options.models:
        try:
            row = measure(
                model,
                samples=options.samples,
                channels_last=options.channels_last,
                time_limit=options.time_limit,
            )
        except PeerError as error:
            sys.exit(str(error))
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
