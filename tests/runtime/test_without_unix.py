"""What Windows has not is not needed to import, check and compile; programs do not run there, and Vela says so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import os, select, signal, sys
import torch, executorch.exir, ai_edge_litert.interpreter, numpy, multiprocessing.pool, concurrent.futures.process
for name in ("fcntl", "resource", "pwd", "grp", "termios", "pty"):
    sys.modules[name] = None
for home, names in ((os, "register_at_fork getuid geteuid killpg fork setsid O_ASYNC"),
                    (signal, "SIGKILL SIGALRM alarm SIGIO SIGHUP setitimer pthread_sigmask")):
    for name in names.split():
        if hasattr(home, name):
            delattr(home, name)
import micronpu, micronpu.cli.main, micronpu.host.build, micronpu.targets.ethosu.vela.process
import micronpu.accuracy.evaluate, micronpu.deploy, micronpu.board
layers = [torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(800, 4)]
model, x = torch.nn.Sequential(*layers).eval(), torch.ones(1, 3, 12, 12)
for target in ("imxrt700", "cortex-m33"):
    assert micronpu.check(model, (x,), target) is not None
    program = micronpu.compile(model, (x,), target, calibration=[x], verify=False)
    assert program.buffer
from micronpu.cli.inspection import inspect_pte
assert inspect_pte(program.buffer, "net.pte").to_dict()
from micronpu.report.difference import difference
assert not difference(program.report, program.report).is_any
# ExecuTorch's wheel for Windows has no library.
micronpu.host.build.ExecuTorchWheel.library_directory = property(lambda wheel: wheel.root / "no lib")
try:
    program.run(x)
except micronpu.MicroNpuError as error:
    assert "on Windows use WSL" in str(error), error
else:
    raise AssertionError("it ran")
print("compiled")
"""


@pytest.mark.sweep
def test_compiling_needs_nothing_of_unix() -> None:
    command = [sys.executable, "-W", "ignore", "-c", CODE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.endswith("compiled\n")
