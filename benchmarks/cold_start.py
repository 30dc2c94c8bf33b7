"""Cold starts: `compile`, `check` and `run` of the keyword spotter, each in a process of its own.

    python -m benchmarks.cold_start --beside ../old --peer --repeat 3 --out benchmarks/results/cold_start.json

Runs alternate with those of another checkout, such as a worktree of an older commit, and of the peer, so that all see
the same machine. Wall time is what the user waits; the seconds of the processor say the same on a machine that others
use as well. All sides find the bytecode of their modules, as pip leaves it behind: the first round writes it and is not
counted.

`--peer` compiles the peers' DS-CNN, the network of MLPerf Tiny's keyword spotter, by their script and by
`micronpu compile`, with the same weights and the same number of calibration inputs.
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
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from benchmarks.peers import ethosu as peer_ethosu
from benchmarks.peers import nxp as peer_nxp

HERE = Path(__file__).resolve().parents[1]
MODEL = "examples/keyword_spotting/model.py:dscnn"
SAMPLES = 4
# The peers' network as a file for the command line; the random inputs are only there to be as many as the peer's.
NEUTRON = """
import sys, torch
sys.path.insert(0, {folder!r})
from models import build

def network():
    model, shape = build("dscnn")
    return model, (torch.randn(shape),)

def calibration():
    return [(torch.randn(build("dscnn")[1]),) for _ in range({samples})]
"""
ETHOSU = """
import sys
sys.path.insert(0, {folder!r})
import models

def network():
    return models.build("dscnn")

def calibration():
    return models.calibration("dscnn", {samples})
"""


class Cost(NamedTuple):
    """What one process took."""

    wall_s: float
    cpu_s: float
    """Of all its threads and children that have ended."""
    peak_kb: float
    """Of the process itself."""


def once(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Cost:
    """Runs one command to its end."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    text = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    if status:
        raise SystemExit(f"{' '.join(command)} failed:\n{text.decode()}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Cost(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, usage.ru_maxrss)


def commands(checkout: Path, folder: Path) -> dict[str, list[str]]:
    """What is timed of one checkout, by name; `run` takes what `compile` has written."""
    model = str(checkout / MODEL)
    np.save(folder / "x.npy", np.zeros((1, 1, 49, 10), np.float32))
    given = {
        "compile": ["compile", model, "-t", "imxrt700", "-o", str(folder / "kws.pte")],
        "check": ["check", model, "-t", "imxrt700"],
        "run": ["run", str(folder / "kws.pte"), "-i", str(folder / "x.npy")],
    }
    return {what: [sys.executable, "-m", "micronpu.cli", *arguments] for what, arguments in given.items()}


def beside_peers(folder: Path) -> dict[str, dict[str, list[str]]]:
    """The same compilation here and by each peer."""
    found = {}
    for name, target, script, text in (
        ("compile for Neutron", "imxrt700-neutron", peer_nxp.peer_script(), NEUTRON),
        ("compile for Ethos-U", "ethos-u55-128", peer_ethosu.peer_script(), ETHOSU),
    ):
        model = folder / f"network_{script.parent.name}.py"
        model.write_text(text.format(folder=str(script.parent), samples=SAMPLES), encoding="utf-8")
        here = ["-m", "micronpu.cli", "compile", f"{model}:network", "-t", target, "-o", str(folder / "peer.pte")]
        peer = [str(script), "dscnn", "--samples", str(SAMPLES)]
        if target.startswith("ethos-u"):
            peer += ["--target", target]
        found[name] = {"here": [sys.executable, *here], "peer": [sys.executable, *peer]}
    return found


def main() -> None:
    """Command line: JSON of the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", type=Path, help="another checkout")
    parser.add_argument("--peer", action="store_true", help="ExecuTorch's own flows for both NPUs, too")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    checkouts = {"here": HERE} | ({"beside": given.beside.resolve()} if given.beside else {})
    plan: dict[str, dict[str, list[str]]] = {}
    rows: dict[str, dict[str, list[Cost]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name, checkout in checkouts.items():
            (folder := Path(scratch) / name).mkdir()
            for what, command in commands(checkout, folder).items():
                plan.setdefault(what, {})[name] = command
        if given.peer:
            plan |= beside_peers(Path(scratch))
        common = os.environ | {
            "OMP_NUM_THREADS": "1",
            "MICRONPU_CACHE": "off",
            "PYTHONPYCACHEPREFIX": str(Path(scratch) / "bytecode"),
        }
        common.pop("PYTHONDONTWRITEBYTECODE", None)
        for turn in range(given.repeat + 1):
            for what, by_side in plan.items():
                for side, command in by_side.items():
                    environment = common | {"PYTHONPATH": str(checkouts.get(side, HERE) / "src")}
                    cost = once(command, Path(scratch), environment)
                    if turn:
                        rows.setdefault(what, {}).setdefault(side, []).append(cost)
    result: dict[str, Any] = {"repeat": given.repeat, "load": os.getloadavg()[0], "commands": {}}
    for what, measured in rows.items():
        told = {
            side: dict(zip(Cost._fields, map(median, zip(*costs, strict=True)), strict=True))
            for side, costs in measured.items()
        }
        other = next((side for side in told if side != "here"), None)
        if other is not None:
            told["ratio"] = {key: told["here"][key] / told[other][key] for key in told["here"]}
        result["commands"][what] = told
    text = json.dumps(result, indent=1)
    print(text)
    if given.out is not None:
        given.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
