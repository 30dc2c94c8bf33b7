"""What every command that reads a program costs, and how that grows with the program's operators.

    python -m benchmarks.commands --sizes 500 1000 2000 --targets ethos-u55-128 cortex-m55
    python -m benchmarks.commands --programs FOLDER      programs that are there, TARGET-SIZE.pte, and no others

Each command is a process of its own; seconds are those of the processor, of all that it starts.  The growth is the
exponent between the smallest and the largest program of what a command takes beyond its start: 1 is proportional.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.cold_start import once
from benchmarks.results import write

BAR_SECONDS = 5.0
SHAPE = (1, 8, 4, 4)
START = "inspect"
"""The command whose time without a program is taken for the start of each."""
MODEL = """
import torch
from torch import nn

class Chain(nn.Module):
    def __init__(self, count):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Conv2d(8, 8, 1) for _ in range(count // 2))
        for layer in self.layers:  # what is added stays small, so that ranges do not grow with the chain
            layer.weight.data.mul_(0.01)
            layer.bias.data.mul_(0.01)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x) + x
        return x

def network():
    return Chain({size}).eval(), (torch.randn({shape}),)

def calibration():
    return [(torch.randn({shape}),)]
"""
"""A chain of convolutions of one pixel and of sums: `size` operators."""


def made(target: str, size: int, folder: Path) -> Path:
    """A program of so many operators."""
    program = folder / f"{target}-{size}.pte"
    if not program.exists():
        model = folder / f"chain_{size}.py"
        model.write_text(MODEL.replace("{size}", str(size)).replace("{shape}", str(SHAPE)), encoding="utf-8")
        command = ["compile", f"{model}:network", "-t", target, "-o", str(program)]
        subprocess.run([sys.executable, "-m", "micronpu.cli", *command], check=True, stdout=subprocess.DEVNULL)
    return program


def commands(target: str, program: Path, folder: Path) -> dict[str, list[str]]:
    """Every command that reads a program, by name."""
    path, x = str(program), str(folder / "x.npy")
    np.save(x, np.zeros(SHAPE, np.float32))
    found = {
        "inspect": ["inspect", path],
        "run": ["run", path, "-i", x],
        "run --isolated": ["run", path, "-i", x, "--isolated"],
        "deploy": ["deploy", path, "-o", str(folder / f"firmware-{program.stem}"), "-t", "corstone300"],
        "image": ["image", path, "-o", str(folder / f"{program.stem}.img"), "--version", "1.0.0"],
        "diff": ["diff", path, path],
    }
    if target.startswith("ethos-u"):
        found |= {
            "disassemble": ["disassemble", path],
            "disassemble --memory": ["disassemble", path, "--memory"],
            "disassemble --diff": ["disassemble", path, "--diff", path],
        }
    return found


def growth(seconds: dict[int, float], start: float) -> float | None:
    """The exponent between the smallest and the largest size; None where the difference drowns in the start."""
    small, large = min(seconds), max(seconds)
    first, last = seconds[small] - start, seconds[large] - start
    return round(math.log(last / first) / math.log(large / small), 2) if large > small and first > 0.05 < last else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[500, 1000, 2000])
    parser.add_argument("--targets", nargs="+", default=["ethos-u55-128", "cortex-m55"])
    parser.add_argument("--programs", type=Path, help="a folder with programs, of which no more are compiled")
    options = parser.parse_args()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        start = once([sys.executable, "-m", "micronpu.cli", START, "--help"], folder, environment).cpu_s
        for target in options.targets:
            rows: dict[str, dict[int, float]] = {}
            for size in options.sizes:
                if options.programs is not None and not (options.programs / f"{target}-{size}.pte").exists():
                    continue
                program = made(target, size, options.programs or folder)
                for what, words in commands(target, program, folder).items():
                    cost = once([sys.executable, "-m", "micronpu.cli", *words], folder, environment)
                    rows.setdefault(what, {})[size] = round(cost.cpu_s, 2)
                    print(f"{target} {size}: {what} {cost.cpu_s:.2f} s", flush=True)
            figures[target] = {
                what: {"cpu_seconds": seconds, "growth": growth(seconds, start)} for what, seconds in rows.items()
            }
    largest = [max(row["cpu_seconds"].values()) for rows in figures.values() for row in rows.values()]
    over = sum(seconds > BAR_SECONDS for seconds in largest)
    print(
        f"{over} of {len(largest)} commands take more than {BAR_SECONDS:.0f} s of the processor on the largest program"
    )
    path = write("commands", "python -m benchmarks.commands", {"start_cpu_seconds": round(start, 2), **figures})
    print(path)


if __name__ == "__main__":
    main()
