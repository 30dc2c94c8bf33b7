"""A signal, a closed terminal or a dead parent ends every command that works, and nothing is left of it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import board_logs
from tests.compile.cli.interrupts import Place
from tests.fuzz.malformed_commands import commands

COMPARE = ("compare", "net.py:net", "-t", "ethos-u55-128", "-t", "imxrt700-neutron", "--jobs", "2")
COMPILE = ("compile", "net.py:net", "-t", "ethos-u55-128", "-o", "out.pte", "--report-json", "r.json")
WORK: dict[str, tuple[str, ...]] = {
    "compile": COMPILE,
    "compare": COMPARE,
    "check": ("check", "net.py:net", "-t", "ethos-u55-128", "--report-html", "r.html"),
    "run": ("run", "net.pte", "-i", "x.npy", "--isolated", "-o", "."),
    "evaluate": ("evaluate", "net.py:net", "net.pte", "--data", "x.npy", "--report-json", "r.json"),
    "blame": ("blame", "net.py:net", "--data", "x.npy", "-t", "ethos-u55-128", "--report-json", "r.json"),
    "fix": (
        "fix",
        "net.py:net",
        "--data",
        "many.npy",
        "-t",
        "ethos-u55-128",
        "--report-json",
        "r.json",
        "--budget",
        "1",
    ),
    "advise": ("advise", "net.py:net", "--calibration", "x.npy", "-t", "ethos-u55-128", "--report-json", "r.json"),
    "deploy": ("deploy", "net.pte", "-o", "firmware", "-t", "corstone300"),
    "image": ("image", "net.pte", "-o", "net.img", "--version", "1.0.0"),
    "disassemble": ("disassemble", "net.pte"),
    "inspect": ("inspect", "net.pte"),
    "diff": ("diff", "net.pte", "net.pte"),
    "reproduce": ("reproduce", "net.manifest.json", "net.py:net", "--no-cache", "-o", "again.pte"),
    "calibrate": ("calibrate", "mychip.toml", "board.log", "--report", "board.json", "-o", "new.toml"),
}
"""A command line of each command that does more than to print a list."""
LISTS = {"targets", "passes", "doctor", "new"}
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MOMENTS = 5


def files() -> dict[str, bytes]:
    import io

    import numpy as np

    import micronpu

    model: dict[str, object] = {}
    from tests.compile.cli.interrupts import MODEL

    exec(MODEL, model)
    module, examples = model["net"]()  # type: ignore[operator]  # then the data, as the command asks for them
    program = micronpu.compile(module, examples, "ethos-u55-128", calibration=model["calibration"]())  # type: ignore[operator]
    memory, many = io.BytesIO(), io.BytesIO()
    np.save(memory, np.random.default_rng(1).normal(size=(1, 3, 12, 12)).astype(np.float32))
    np.save(many, np.random.default_rng(0).normal(size=(32, 3, 12, 12)).astype(np.float32))
    with tempfile.TemporaryDirectory() as folder:
        program.save(Path(folder) / "net.pte", manifest=True)
        manifest = (Path(folder) / "net.manifest.json").read_bytes()
    chip = (Path(micronpu.__file__).parent / "chips" / "ra8p1.toml").read_text(encoding="utf-8")
    return {
        "net.pte": program.buffer,
        "x.npy": memory.getvalue(),
        "many.npy": many.getvalue(),
        "net.manifest.json": manifest,
        "mychip.toml": chip.replace('name = "ra8p1"', 'name = "mychip"').encode(),
        "board.log": board_logs.own().encode(),
        "board.json": board_logs.report().to_json().encode(),
    }


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("words", "event", "number"),
    [
        (COMPARE, 2, signal.SIGINT),  # the second process starts
        (COMPARE, 3, signal.SIGTERM),  # a row is there, the other process works
        (COMPILE, "subprocess.Popen", signal.SIGINT),  # Vela starts
        (COMPILE, "verify 0.00", signal.SIGHUP),
    ],
)
def test_a_signal_ends_a_command(tmp_path: Path, words: tuple[str, ...], event: int | str, number: int) -> None:
    assert Place(tmp_path).ended(words, event, number).wrong(number, {}) == ""


@pytest.mark.sweep
def test_a_dead_command_takes_its_processes_along(tmp_path: Path) -> None:
    with Place(tmp_path).started(COMPARE, "subprocess.Popen", stdout=subprocess.PIPE) as command:
        assert command.process.stdout is not None and command.process.stdout.readline() == b"now\n"
        assert command.has_children()
        command.process.kill()
        left = command.left()
    assert (left.code, left.children, left.temporary) == (-signal.SIGKILL, [], [])


@pytest.mark.sweep
def test_a_closed_terminal_ends_a_command_with_its_processes(tmp_path: Path) -> None:
    terminal, theirs = os.openpty()
    more = {"stdin": theirs, "stdout": subprocess.PIPE, "preexec_fn": _take_terminal}
    with Place(tmp_path).started(COMPARE, 3, **more) as command:
        os.close(theirs)
        assert command.process.stdout is not None and command.process.stdout.readline() == b"now\n"
        os.close(terminal)
        assert command.left().wrong(signal.SIGHUP, {}) == ""


def _take_terminal() -> None:
    import fcntl
    import termios

    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_commands_with_work_are_all_of_them() -> None:
    assert set(WORK) | LISTS == set(commands())


def random_moments(place: Place, name: str, count: int, seed: int) -> Iterator[str]:
    """What is wrong after a signal at moments between events, in processor seconds; nothing where all is well."""
    rng = random.Random(f"{name} {seed}")
    whole = place.ended(WORK[name])
    assert whole.code == 0, whole.errors
    first = whole.events.index("begin")
    for _ in range(count):
        number = rng.choice(SIGNALS)
        with place.started(WORK[name], first, 0, stdout=subprocess.PIPE) as command:
            assert command.process.stdout is not None and command.process.stdout.readline() == b"now\n"
            start = command.working()
            moment = start + rng.random() * max(whole.working - start, 0.0)
            while command.process.poll() is None and command.working() < moment:
                time.sleep(0.02)
            command.process.send_signal(number)
            left = command.left()
            if left.code and (found := left.wrong(number, whole.files)):  # 0: it was faster
                yield f"{name}, {signal.Signals(number).name} after {moment:.2f} s: {found}"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["compile", "compare", "blame"])
def test_long_commands_end_at_moments_between_events(tmp_path: Path, name: str) -> None:
    assert list(random_moments(Place(tmp_path, files()), name, 3, seed=0)) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", WORK)
def test_every_command_ends_at_every_moment(tmp_path: Path, name: str) -> None:
    """At five events of each, spread over its run: files, folders and processes that begin, steps that are told."""
    place = Place(tmp_path, files())
    whole = place.ended(WORK[name])
    assert (whole.code, whole.temporary, whole.children) == (0, [], []), whole.errors
    count = len(whole.events)
    for moment in range(min(MOMENTS, count)):
        event, number = moment * count // MOMENTS if count > MOMENTS else moment, SIGNALS[moment % len(SIGNALS)]
        what = f"{signal.Signals(number).name} at {whole.events[event]}"
        assert place.ended(WORK[name], event, number).wrong(number, whole.files) == "", what


if __name__ == "__main__":  # python -m tests.compile.cli.test_interrupts COUNT SEED
    count, start = (int(word) for word in sys.argv[1:3])
    for command in ("compile", "compare", "check", "evaluate", "blame", "advise", "reproduce"):
        with tempfile.TemporaryDirectory() as scratch:
            print(command, list(random_moments(Place(Path(scratch) / "a", files()), command, count, start)), flush=True)
