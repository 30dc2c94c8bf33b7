"""The benchmark beside the peer ends what it started, whatever ends the benchmark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SLEEPER = """
import os, pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
pathlib.Path({path!r}).write_text(f"{{os.getpid()}} {{child.pid}}")
time.sleep(120)
"""


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_peer_does_not_outlive_the_benchmark(number: signal.Signals, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    (tmp_path / "nxp").mkdir()
    (tmp_path / "nxp" / "run_upstream.py").write_text(SLEEPER.format(path=str(pids)))
    benchmark = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.peer_nxp", "dscnn"],
        cwd=ROOT,
        env=os.environ | {"MICRONPU_PEERS": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    started: list[int] = []
    try:
        deadline = time.monotonic() + 30
        while len(started) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
            started = [int(pid) for pid in pids.read_text().split()] if pids.exists() else []
        assert len(started) == 2 and all(is_running(pid) for pid in started)
        benchmark.send_signal(number)
        assert benchmark.wait(timeout=30) != 0
        deadline = time.monotonic() + 10
        while any(is_running(pid) for pid in started) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(is_running(pid) for pid in started)
    finally:
        benchmark.kill()
        benchmark.wait()
        for pid in started:
            if is_running(pid):
                os.kill(pid, signal.SIGKILL)
