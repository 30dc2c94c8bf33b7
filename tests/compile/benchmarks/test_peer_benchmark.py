"""The benchmark beside the peer ends what it started, whatever ends the benchmark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PEER = """
import os, subprocess, sys, time
held = os.open({path!r}, os.O_WRONLY)
os.set_inheritable(held, True)
wait = f"import os, time; time.sleep(120); os.write({{held}}, b'left alone')"
child = subprocess.Popen([sys.executable, "-c", wait], close_fds=False)
os.write(held, b"started\\n")
exec(wait)
"""
"""A peer that starts a process; both hold a pipe open as long as they live, and write to it if nobody ends them."""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_peer_does_not_outlive_the_benchmark(number: signal.Signals, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "alive")
    (tmp_path / "nxp").mkdir()
    (tmp_path / "nxp" / "run_upstream.py").write_text(PEER.format(path=str(tmp_path / "alive")))
    reader = os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(reader) as alive, open(tmp_path / "alive", "w") as writer:
        os.set_blocking(reader, True)
        # The benchmark holds the pipe as well, so that it ends where the benchmark does before there is a peer.
        benchmark = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.peers.nxp", "dscnn"],
            cwd=ROOT,
            env=os.environ | {"MICRONPU_PEERS": str(tmp_path)},
            stdout=writer,
            stderr=subprocess.DEVNULL,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # which who started us may ignore
        )
        writer.close()
        with benchmark:
            assert alive.readline() == "started\n"
            benchmark.send_signal(number)
            assert benchmark.wait() != 0
            assert alive.read() == ""  # at the end of the last one that holds the pipe
