"""The process of an isolated program: what it imports, and what the kernel keeps it from."""

from __future__ import annotations

import ctypes
import platform
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.runtime.test_host_program import add_pte, int8

import micronpu
from micronpu.base.errors import RuntimeUnavailableError
from micronpu.runtime import ArrayProgram, HostProgram, RunOptions

A, B = int8(1, 8, seed=1), int8(1, 8, seed=2)
SOURCES = Path(micronpu.__file__).parents[1]

# Each line is tried behind the fence, and its error or its value printed. Without it, all of them work.
TRIES = {
    "network": [
        "socket.socket(socket.AF_INET, socket.SOCK_STREAM)",
        "socket.socketpair()",
        "socket.create_connection(('127.0.0.1', 9))",
    ],
    "processes": [
        "os.fork()",
        "os.posix_spawn('/bin/true', ['true'], {})",
        "subprocess.run(['/bin/true'])",
        "os.execv('/bin/true', ['true'])",
        "os.kill(os.getppid(), 0)",
        "os.chmod(sys.argv[1] + '/there', 0o777)",
        "os.utime(sys.argv[1] + '/there')",
        "os.truncate(sys.argv[1] + '/there', 0)",
    ],
    "files": [
        "open(sys.argv[1] + '/new', 'w')",
        "open(sys.argv[1] + '/there', 'a')",
        "open('/proc/self/mem', 'r+b')",
        "os.mkdir(sys.argv[1] + '/folder')",
        "os.remove(sys.argv[1] + '/there')",
        "os.rename(sys.argv[1] + '/there', sys.argv[1] + '/gone')",
        "os.symlink('/etc/passwd', sys.argv[1] + '/link')",
        "os.symlink('/etc/passwd', sys.argv[2] + '/link')",
        "os.link(sys.argv[1] + '/there', sys.argv[1] + '/link')",
    ],
}
ALLOWED = [
    "open(sys.argv[2] + '/new', 'w').write('x')",
    "os.mkdir(sys.argv[2] + '/folder')",
    "open(sys.argv[1] + '/there').read()",
    "open('/dev/null', 'w').write('x')",
    "threading.Thread(target=print).start()",
]
SCRIPT = """
import os, socket, subprocess, sys, threading
sys.path.append(sys.argv[3])
from micronpu.base.fence import put_up
print(*put_up(sys.argv[2]))
for line in sys.argv[4:]:
    try:
        eval(line)
        print("done")
    except OSError as error:
        print(type(error).__name__)
sys.stdout.flush()
os.abort()
"""


def test_what_the_kernel_refuses(tmp_path):
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    (outside / "there").write_text("content")
    lines = [*ALLOWED, *(line for lines in TRIES.values() for line in lines)]
    arguments = [sys.executable, "-I", "-c", SCRIPT, outside, inside, SOURCES, *lines]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
    fences, *results = done.stdout.splitlines()
    found = dict(zip(lines, filter(None, results), strict=True))
    assert done.returncode == -signal.SIGABRT, done  # of abort(), which signals the process itself
    assert all(found[line] == "done" for line in ALLOWED), found
    assert set(fences.split()) == expected_fences()
    for fence in fences.split():
        assert {line: found[line] for line in TRIES[fence]} == dict.fromkeys(TRIES[fence], "PermissionError")


def expected_fences() -> set[str]:
    """What this machine's kernel offers, asked for otherwise than the package does."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        return set()
    landlock = ctypes.CDLL(None).syscall(444, None, 0, 1) >= 1
    actions = Path("/proc/sys/kernel/seccomp/actions_avail")
    seccomp = actions.exists() and "errno" in actions.read_text().split()
    return ({"files"} if landlock else set()) | ({"network", "processes"} if seccomp else set())


def test_an_isolated_program_is_behind_it_and_imports_nothing_from_the_current_folder(tmp_path, monkeypatch):
    """Which is where a stranger's program is unpacked, with what came along."""
    (tmp_path / "a.pte").write_bytes(add_pte())
    for name in ("resource", "socket", "json", "numpy", "torch", "micronpu", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text("open('executed', 'w')\nraise SystemExit\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    with HostProgram("a.pte", RunOptions(isolated=True)) as program:
        assert program._isolated.fences == expected_fences()
        assert torch.equal(program.run(A, B)[0], HostProgram(add_pte()).run(A, B)[0])
    assert not Path("executed").exists()


# As torch built for CUDA does: torch/_inductor/runtime/cache_dir_utils.py while torch is imported, and Triton.
TORCH_FOR_CUDA = """
import pathlib, subprocess, sys, tempfile
sys.path.remove(str(pathlib.Path(__file__).parent))
folder = tempfile.mkdtemp()
pathlib.Path(folder, "cache").write_text("written")
subprocess.run(["/bin/rm", "-r", folder], check=True)
del sys.modules["torch"]
import torch
"""


@pytest.mark.sweep
def test_imports_may_write_and_start_programs(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text(TORCH_FOR_CUDA)
    monkeypatch.syspath_prepend(str(tmp_path))
    with HostProgram(add_pte(), RunOptions(isolated=True, profile=True)) as program:
        assert program._isolated.fences == expected_fences()
        assert torch.equal(program.run(A, B)[0], HostProgram(add_pte()).run(A, B)[0])


def test_a_program_that_needs_no_torch_runs_without_it(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("raise ImportError")
    monkeypatch.syspath_prepend(str(tmp_path))
    with ArrayProgram(add_pte(), RunOptions(isolated=True)) as program:
        (given,) = program.run_arrays(A.numpy(), B.numpy())
        assert torch.equal(program.run(A, B)[0], torch.from_numpy(given))
    assert torch.equal(HostProgram(add_pte()).run(A, B)[0], torch.from_numpy(given))


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise SystemExit(3)", "ended with code 3 before it read the program"),
        ("raise ImportError('no libcudart.so.13')", "cannot be imported: no libcudart.so.13|ImportError: no libcu"),
        ("import os; os.abort()", r"crashed with SIGABRT before it read the program"),
    ],
)
def test_a_process_that_does_not_start_is_not_the_program_s_fault(code, message, tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(RuntimeUnavailableError, match=message) as caught:
        HostProgram(add_pte(), RunOptions(isolated=True, profile=True))
    assert "damaged" not in str(caught.value)
