"""Small programs to deploy, compiled once per process: one for each kind of target."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from torch import nn

import micronpu
from micronpu.compiler.program import CompiledProgram
from micronpu.deploy.deployment import Deployment, Source, deploy_together
from micronpu.ethosu import EthosUOptions
from micronpu.neutron import NeutronOptions
from tests.compile.small import Small, batches, conv, image, linear
from tests.compile.state_rows import ROWS, sequences


def _classify(self: Any, x: torch.Tensor) -> torch.Tensor:
    y = nn.functional.avg_pool2d(torch.relu(self.first(x)), 6)
    return self.last(y.flatten(1))


def _two(self: Any, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    z = torch.relu(self.first(x)) + y
    return torch.atan2(z, y), self.first(z)


def deploy(data: bytes, folder: Path, target: str | None = None, **source: Any) -> Deployment:
    """The folder of one program."""
    return deploy_together([Source(data, **source)], folder, target=target)


@functools.cache
def program(kind: str) -> CompiledProgram:
    """A program by name, see `KINDS`."""
    torch.manual_seed(0)
    network = Small(_classify, first=conv(8, 8), last=linear(8, 10))
    inputs: tuple[torch.Tensor, ...] = (image(),)
    options: Any = None
    target = "corstone300" if kind.startswith("ethosu") else "imxrt700"
    if kind in ("core", "host"):
        layers = ("conv2d.default", "linear.default", "avg_pool2d.default", "relu.default")
        options = NeutronOptions(silicon="imxrt700", operators_not_to_delegate=tuple(f"aten.{n}" for n in layers))
        target = "imxrt700" if kind == "core" else "imxrt700-neutron"
    if kind == "ethosu_int8":
        options = EthosUOptions("ethos-u55-128", carry_graph=True)
    if kind.startswith("state"):
        target = "corstone300" if kind == "state_int8" else "imxrt700-neutron"
        return micronpu.compile(
            ROWS["slices"](),
            (torch.zeros(1, 8),),
            target,
            calibration=sequences(),
            quantization=micronpu.Quantization(io="int8" if "_" in kind else None),
        )
    if kind == "loop":
        x = torch.randn(140, 1, 8)
        layer = Small(lambda self, x: self.gru(x)[0][-1], gru=nn.GRU(8, 8))
        return micronpu.compile(layer, (x,), "imxrt700-neutron", calibration=[(x,)] * 2)
    if kind == "two":
        network, inputs, target = Small(_two, first=conv(8, 8)), (image(), image() * 2), "imxrt700-neutron"
    _, _, io = kind.partition("_")
    return micronpu.compile(
        network,
        inputs,
        target,
        calibration=batches(inputs, 6),
        quantization=micronpu.Quantization(activations=io if io == "int16" else "int8", io=io or None),
        options=options,
    )


KINDS = (
    "ethosu",
    "ethosu_int8",
    "ethosu_int16",
    "neutron",
    "neutron_int8",
    "core",
    "host",
    "two",
    "state",
    "state_int8",
    "loop",
)
