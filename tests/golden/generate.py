"""Makes the golden programs: ``python -m tests.golden.generate [NAME ...]``.

One small program of each kind, with inputs and the outputs that it gave, stays in this folder.  Later versions run it
to the same integers, or refuse it with a sentence that names the version (`tests/runtime/test_golden.py`).  So they are
made again only where a format or a number changes on purpose, and the changelog says so.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import micronpu
from micronpu.ethosu import EthosUOptions

FOLDER = Path(__file__).parent


class Net(nn.Module):
    """A convolution, a pool, a residual, a softmax: several operators of every kind of program."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(2, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.classes = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(x))
        y = torch.relu(self.second(y)) + y
        y = nn.functional.max_pool2d(y, 2)
        return torch.softmax(self.classes(y.mean((2, 3))), 1)


class Mixed(Net):
    """Beside what NPUs run an operator in float, so that host, core and NPU all have a part."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(x))
        y = torch.relu(self.second(y)) + y
        return torch.atan2(self.classes(y.mean((2, 3))), torch.tensor([0.5, 1.0, 2.0, 4.0]))


def _compiled(model: type[nn.Module], target: str, **options: Any) -> micronpu.CompiledProgram:
    generator = torch.Generator().manual_seed(1)
    batches = [torch.randn(1, 2, 6, 5, generator=generator) for _ in range(4)]
    return micronpu.compile(model().eval(), (batches[0],), target=target, calibration=batches, **options)


def _via(target: str, via: str) -> dict[str, Any]:
    return {
        "target": target,
        "quantization": micronpu.Quantization(io="int8"),
        "options": EthosUOptions(target, via=via, carry_graph=True),
    }


KINDS: dict[str, Callable[[], micronpu.CompiledProgram]] = {
    "neutron": lambda: _compiled(Net, "imxrt700-neutron", quantization=micronpu.Quantization(io="int8")),
    "combined": lambda: _compiled(Mixed, "imxrt700-neutron-cortexm"),
    "ethosu-litert": lambda: _compiled(Net, **_via("ethos-u55-128", "litert")),
    "ethosu-tosa": lambda: _compiled(Net, **_via("ethos-u85-256", "tosa")),
    "cortexm": lambda: _compiled(Net, "cortex-m55", quantization=micronpu.Quantization(io="int8")),
}
"""Every kind of program that micronpu writes."""


def inputs(kind: str) -> tuple[torch.Tensor, ...]:
    """What the golden program of a kind is run on."""
    generator = torch.Generator().manual_seed(2)
    if kind == "combined":
        return (torch.randn(1, 2, 6, 5, generator=generator),)
    return (torch.randint(-128, 128, (1, 2, 6, 5), dtype=torch.int8, generator=generator),)


def main(names: list[str]) -> None:
    """Writes the programs of the names, or all."""
    for kind in names or KINDS:
        program = KINDS[kind]()
        results = program.run(*inputs(kind))
        outputs = results if isinstance(results, tuple) else (results,)
        program.save(FOLDER / f"{kind}.pte")
        arrays = {f"output_{i}": y.numpy() for i, y in enumerate(outputs)}
        with (FOLDER / f"{kind}.npz").open("wb") as file:
            np.savez_compressed(file, **{f"input_{i}": x.numpy() for i, x in enumerate(inputs(kind))}, **arrays)
        print(f"{kind}: {len(program.buffer)} bytes, {program.report.summary()}")


if __name__ == "__main__":
    main(sys.argv[1:])
