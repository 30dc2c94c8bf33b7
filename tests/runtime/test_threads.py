"""Programs in many threads: the right results, and a clean end of the process."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.runtime.test_host_program import add_pte, conv_pte

SCRIPT = textwrap.dedent(
    """
    import sys, threading, torch
    from micronpu.runtime import HostProgram, RunOptions

    folder, runs, exercise = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    torch.manual_seed(0)
    a, b, x = (torch.randint(-128, 128, s, dtype=torch.int8) for s in ((1, 8), (1, 8), (1, 3, 5, 4)))
    options = RunOptions(isolated=False)
    programs = [(HostProgram(f"{folder}/{name}.pte", options), inputs) for name, inputs in
                (("add", (a, b)), ("conv", (x,)), ("add", (b, a)), ("conv", (x.flip(2),)))]
    expected = [program.run(*inputs)[0] for program, inputs in programs]
    wrong, threads = [], 8

    def work(number):
        for i in range(number, runs, threads):
            program, inputs = programs[(number + i) % 4]
            if exercise == "load" and i % 10 == 0:
                program = HostProgram(program._data, options)
            if not torch.equal(program.run(*inputs)[0], expected[(number + i) % 4]):
                wrong.append(i)

    workers = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
    [w.start() for w in workers]
    [w.join() for w in workers]
    print("wrong:", wrong)
    """
)


def stress(folder: Path, runs: int, exercise: str) -> None:
    (folder / "add.pte").write_bytes(add_pte())
    (folder / "conv.pte").write_bytes(conv_pte())
    command = [sys.executable, "-c", SCRIPT, str(folder), str(runs), exercise]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()[-9:]) == (0, "wrong: []"), done.stdout + done.stderr


@pytest.mark.sweep
def test_eight_threads_run_four_programs_and_the_process_ends(tmp_path: Path) -> None:
    stress(tmp_path, 1000, "run")


@pytest.mark.slow
@pytest.mark.parametrize("exercise", ["run", "load"])
def test_ten_thousand_runs(tmp_path: Path, exercise: str) -> None:
    stress(tmp_path, 10_000, exercise)
