"""What Vela's process survives: crashes, hangs, interrupts, forks, and its own end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from micronpu.base.errors import RuntimeUnavailableError
from micronpu.emit.litert import to_litert
from micronpu.ir import DType, GraphBuilder, QParams, TensorType
from micronpu.ops.pooling import AvgPool2d, MaxPool2d
from micronpu.targets.ethosu import rules
from micronpu.targets.ethosu.options import EthosUOptions
from micronpu.targets.ethosu.rules import VelaJudge
from micronpu.targets.ethosu.vela import compiler as vela
from micronpu.targets.ethosu.vela.compiler import VelaError, VelaProgram, compile_flatbuffer
from micronpu.targets.ethosu.vela.process import VELA, VelaProcess, WorkerEndedError

SPEC = EthosUOptions("ethos-u55-128")
Q = QParams.per_tensor(0.05, 0)


def graph(size: int = 2) -> GraphBuilder:
    builder = GraphBuilder()
    builder.finish(
        builder.emit(MaxPool2d((size, size), (2, 2)), builder.input(TensorType((1, 8, 8, 4), DType.INT8, Q)))
    )
    return builder


def good() -> bytes:
    return to_litert(graph().graph).data


def crashing() -> bytes:
    """A flatbuffer whose root lies outside of the file: Vela reads there."""
    data = bytearray(good())
    data[:4] = (0x7FFFFFF0).to_bytes(4, "little")
    return bytes(data)


def compile_good() -> VelaProgram:
    return compile_flatbuffer(good(), SPEC)


def worker() -> int:
    """Number of the worker's process, which is there after a call."""
    compile_good()
    assert VELA.pid is not None
    return VELA.pid


def is_gone(pid: int, seconds: float = 300.0) -> bool:
    """Whether a process ends in time; a zombie has not ended for those who count processes."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


@pytest.fixture
def stopped() -> Iterator[int]:
    """A worker that hangs: it is stopped, and not even the alarm that it sets reaches it."""
    pid = worker()
    os.kill(pid, signal.SIGSTOP)
    yield pid
    assert is_gone(pid)


@pytest.mark.sweep
def test_crash_is_a_sentence_and_the_next_call_works() -> None:
    before, expected = worker(), compile_good()
    for _ in range(2):
        with pytest.raises(VelaError, match=r"^Vela crashed with SIGSEGV on this program\.$"):
            compile_flatbuffer(crashing(), SPEC)
        assert VELA.pid is None
    assert is_gone(before)
    assert compile_good() == expected
    assert VELA.pid != before


def test_crash_is_a_reason_of_the_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = graph()
    written = rules.emitters_of(SPEC)
    crash = SimpleNamespace(data=crashing())
    monkeypatch.setattr(rules, "emitters_of", lambda spec: {**written, "litert": lambda graph: crash})
    (reason,) = VelaJudge(EthosUOptions("ethos-u55-128", via="litert"))(builder.graph.nodes[0])
    assert reason.rule == "vela_accepts"
    assert reason.detail == "Vela crashed with SIGSEGV on this program."
    assert VelaJudge(EthosUOptions("ethos-u55-128"))(builder.graph.nodes[0]) == []  # TOSA is there


def test_hang_ends(stopped: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vela, "_SECONDS", 0.3)
    monkeypatch.setattr(vela, "_SECONDS_PER_KIB", 0.0)
    with pytest.raises(VelaError, match=r"^Vela did not end within 0 s on this program\.$"):
        compile_good()
    monkeypatch.undo()
    assert compile_good().cycles > 0


def test_worker_killed_between_calls_is_replaced() -> None:
    pid, expected = worker(), compile_good()
    for _ in range(8):  # the kernel takes a moment, so that some calls reach the dying process
        before = worker()
        os.kill(before, signal.SIGKILL)
        assert compile_good() == expected
        assert VELA.pid != before
    assert is_gone(pid)


def test_worker_killed_again_and_again_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a kernel without memory: one more try, no endless ones."""
    process = VelaProcess()
    tries = []

    def killed() -> object:
        tries.append(1)
        living = VelaProcess._living(process)
        os.kill(living.pid, signal.SIGSTOP)
        threading.Timer(0.1, os.kill, (living.pid, signal.SIGKILL)).start()
        return living

    monkeypatch.setattr(process, "_living", killed)
    with pytest.raises(WorkerEndedError, match="crashed with SIGKILL"):
        process.compile("EthosU55", good(), "TFLITE", "", seconds=60.0)
    assert len(tries) == 2


def test_interrupt_leaves_a_usable_state(stopped: int) -> None:
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(KeyboardInterrupt):
            compile_good()
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert VELA.pid is None
    assert compile_good().cycles > 0


def test_another_worker_gives_the_same_program() -> None:
    first = compile_good()
    VELA.end()
    VELA.end()
    assert compile_good() == first == compile_good()


def test_threads_share_the_worker() -> None:
    expected = {size: compile_flatbuffer(to_litert(graph(size).graph).data, SPEC) for size in (2, 3, 4)}
    wrong: list[int] = []

    def work(size: int) -> None:
        for _ in range(20):
            if compile_flatbuffer(to_litert(graph(size).graph).data, SPEC) != expected[size]:
                wrong.append(size)

    pid = VELA.pid
    threads = [threading.Thread(target=work, args=(size,)) for size in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert VELA.pid == pid


def test_text_of_one_call_is_not_that_of_the_next() -> None:
    builder = GraphBuilder()
    builder.finish(builder.emit(AvgPool2d((300, 300)), builder.input(TensorType((1, 300, 300, 4), DType.INT8, Q))))
    for _ in range(2):
        with pytest.raises(VelaError, match=r"^Vela: kernel height: 300 out of range"):
            compile_flatbuffer(to_litert(builder.graph).data, SPEC)
        with pytest.raises(VelaError, match=r"^Vela refuses the program"):
            compile_flatbuffer(b"\x08\0\0\0TFL3" + bytes(64), SPEC)
        assert compile_good().cycles > 0


def test_no_process_can_be_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    VELA.end()
    for executable, why in ((tmp_path / "none", "No such file"), (Path("/bin/true"), "it ends at once")):
        monkeypatch.setattr(sys, "executable", str(executable))
        with pytest.raises(RuntimeUnavailableError, match=f"^Vela cannot run: {executable} .*{why}"):
            compile_good()
        assert VELA.pid is None
    monkeypatch.undo()
    assert compile_good().cycles > 0


# ---------------------------------------------------------------- other processes

SCRIPT = """
import os, signal, sys, threading, time
from tests.oracle.targets.ethosu.test_vela_process import *

compile_good()
pid = VELA.pid
print(pid, flush=True)
"""


def run(body: str, *, code: int = 0) -> list[str]:
    """Lines that a script prints, with the worker's number first; nothing may be left of it, and no warning said."""
    root = Path(__file__).resolve().parents[4]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT + textwrap.dedent(body)],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert (done.returncode, done.stderr if code == 0 else "") == (code, "")
    pid, *lines = done.stdout.splitlines()
    assert is_gone(int(pid))
    return lines


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("", 0),
        ("sys.exit(3)", 3),
        ("os._exit(4)", 4),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("threading.Thread(target=time.sleep, args=(0.2,)).start()", 0),
    ],
)
def test_nothing_is_left_at_the_end(body: str, code: int) -> None:
    assert run(body, code=code) == []


@pytest.mark.sweep
def test_fork_has_a_worker_of_its_own() -> None:
    """Also while another thread of the parent is in a call, whose lock the fork inherits locked."""
    body = """
    expected = compile_good()
    busy = threading.Thread(target=lambda: [compile_good() for _ in range(200)])
    busy.start()
    for _ in range(5):
        child = os.fork()
        if child == 0:
            fine = compile_good() == expected and VELA.pid not in (None, pid)
            VELA.end()
            os._exit(0 if fine else 1)
        assert os.waitpid(child, 0)[1] == 0
    busy.join()
    assert compile_good() == expected and VELA.pid == pid
    """
    assert run(body) == []


@pytest.mark.sweep
def test_worker_ends_with_its_parent_though_a_fork_lives() -> None:
    body = """
    if os.fork() == 0:
        print("gone" if is_gone(pid) else "there", flush=True)
    os._exit(0)
    """
    assert run(body) == ["gone"]
