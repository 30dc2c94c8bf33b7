"""In a process of its own, whose plug-in has the toy's file: compiles, runs, saves and looks; prints what came out.

python -m tests.compile.targets.toy FOLDER
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import torch
from tests.compile.targets.toy import CHIP
from tests.compile.targets.toy.backend import Toy
from tests.compile.targets.toy.simulator import Simulator
from torch import nn

import micronpu
from micronpu.base.errors import MicroNpuError
from micronpu.host import build
from micronpu.program.digest import seal, unsealed
from micronpu.program.plan import read_plan
from micronpu.runtime.program import HostProgram
from micronpu.targets.registry import BACKENDS


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(torch.sigmoid(x))) * 0.5


def main(folder: Path) -> dict[str, object]:
    native = folder / "native"
    shutil.copytree(build.source_directory(), native)
    shutil.copy(Path(__file__).with_name("delegate.cpp"), native / "toy_delegate.cpp")  # the one native file
    build.source_directory = lambda: native
    BACKENDS["toy"] = Toy()  # the one line
    chip = folder / "toyboard.toml"
    chip.write_text(CHIP)
    torch.manual_seed(0)
    data = [(torch.randn(1, 8),) for _ in range(8)]
    program = micronpu.compile(Net().eval(), data[0], str(chip), calibration=data)
    verified = Simulator.runs
    equal = all(torch.equal(program.run(*x), program.quantized(*x)) for x in data)
    program.save(folder / "toy.pte")
    again = HostProgram(folder / "toy.pte")
    equal_again = all(torch.equal(again.run(*x)[0], program.quantized(*x)) for x in data)
    content = bytearray(unsealed((folder / "toy.pte").read_bytes()))
    content[content.index(b"TOY1") + 3] = ord("2")
    try:
        HostProgram(seal(bytes(content))).run(*data[0])
        refused = ""
    except MicroNpuError as error:
        refused = str(error)
    return {
        "backends": [d.backend for d in read_plan((folder / "toy.pte").read_bytes())[0].delegates],
        "delegated": sorted(v.operator for v in program.report.verdicts if v.partition is not None),
        "reasons": [str(r) for v in program.report.host for r in v.reasons],
        "runs": [verified, Simulator.runs],
        "equal": [equal, equal_again],
        "refused": refused,
        "notes": list(program.report.notes),
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
