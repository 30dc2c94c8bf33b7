"""Cold starts: `compile`, `check` and `run` of the keyword spotter, each in a process of its own.

    python -m benchmarks.cold_start --beside ../old --repeat 3 --out benchmarks/results/cold_start.json

Runs alternate with those of another checkout, such as a worktree of an older commit, so that both see the same machine.
Wall time is what the user waits; the seconds of the processor say the same on a machine that others use as well.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parents[1]
MODEL = "examples/keyword_spotting/model.py:dscnn"


def once(checkout: Path, arguments: list[str], folder: Path) -> tuple[float, float, int]:
    """Wall time and processor time in seconds and peak memory in kB of one command."""
    environment = os.environ | {"PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    command = [sys.executable, "-m", "micronpu.cli", *arguments]
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    text = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    if status:
        raise SystemExit(f"{' '.join(command)} failed:\n{text.decode()}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, cpu, usage.ru_maxrss


def commands(checkout: Path, folder: Path) -> dict[str, list[str]]:
    """What is timed, by name."""
    model = str(checkout / MODEL)
    return {
        "compile": ["compile", model, "-t", "imxrt700", "-o", str(folder / "kws.pte")],
        "check": ["check", model, "-t", "imxrt700"],
        "run": ["run", str(folder / "kws.pte"), "-i", str(folder / "x.npy")],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", type=Path, help="another checkout")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    checkouts = {"here": HERE} | ({"beside": given.beside.resolve()} if given.beside else {})
    rows: dict[str, dict[str, list[tuple[float, float, int]]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folders = {name: Path(scratch) / name for name in checkouts}
        for folder in folders.values():
            folder.mkdir()
            np.save(folder / "x.npy", np.zeros((1, 1, 49, 10), np.float32))
        for _ in range(given.repeat):
            for what in ("compile", "check", "run"):
                for name, checkout in checkouts.items():
                    found = once(checkout, commands(checkout, folders[name])[what], folders[name])
                    rows.setdefault(what, {}).setdefault(name, []).append(found)
    result: dict[str, Any] = {"repeat": given.repeat, "load": os.getloadavg()[0], "commands": {}}
    for what, by_checkout in rows.items():
        told = {
            name: dict(zip(("wall_s", "cpu_s", "peak_kb"), map(median, zip(*found, strict=True)), strict=True))
            for name, found in by_checkout.items()
        }
        if "beside" in told:
            told["ratio"] = {key: told["here"][key] / told["beside"][key] for key in told["here"]}
        result["commands"][what] = told
    text = json.dumps(result, indent=1)
    print(text)
    if given.out is not None:
        given.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
