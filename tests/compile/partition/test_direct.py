"""Programs of quantize, NPU calls and dequantize are written without ExecuTorch's compiler, and come out the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.compile.random_networks import RandomNetwork
from torch import nn

from micronpu.base.errors import MicroNpuError
from micronpu.compiler.host import host_part
from micronpu.compiler.lowering import MethodPart, finish, lowered
from micronpu.compiler.quantized import quantized_module
from micronpu.partition.direct import program_of
from micronpu.partition.lower import lower
from micronpu.targets.registry import device_for


class Clock:
    """Takes no time."""

    def step(self, name: str) -> Any:
        import contextlib

        return contextlib.nullcontext(lambda part: None)


def host_of(model: nn.Module, examples: tuple[torch.Tensor, ...], target: str, io: Any = None) -> tuple[Any, ...]:
    """The host part, example inputs for it, and what its integers mean."""
    device = device_for(target)
    quantizer = device.quantizer(io=io)
    clock: Any = Clock()
    made = quantized_module(model.eval(), examples, quantizer, calibration=[examples], clock=clock)
    return host_part(made.module, device, borders=made.borders), made.examples, made.borders


def by_executorch(part: MethodPart) -> bytes:
    """The program as ExecuTorch's compiler makes it."""
    made = lower({"forward": (part.host.module, part.examples)}, lambda edge: finish(edge, [part]))
    return bytes(made.buffer)


class Branches(nn.Module):
    """Two calls of the NPU round one float operator that no core has, several results, a nested output."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        a = torch.relu(self.first(x))
        return {"b": (self.second(a), a), "c": [torch.relu(y) + y]}


SEEDS = (1, 3, 5, 8, 12, 17)


@pytest.mark.parametrize(
    ("target", "io", "layout"),
    [
        ("imxrt700", None, torch.contiguous_format),
        ("imxrt700", "int8", torch.channels_last),
        ("ethos-u55-128", None, torch.channels_last),
        ("ethos-u55-128", "int8", torch.contiguous_format),
    ],
)
def test_the_bytes_are_those_of_executorchs_compiler(target: str, io: Any, layout: torch.memory_format) -> None:
    x = torch.randn(1, 3, 8, 8).to(memory_format=layout)
    host, examples, borders = host_of(Branches(), (x, torch.randn(1, 5)), target, io)
    assert program_of(host.module, examples) is not None
    part = MethodPart(host, examples, borders, ())
    direct = lowered([part], False).buffer
    assert direct == by_executorch(part)


def test_random_networks_come_out_the_same() -> None:
    compared = 0
    for seed in SEEDS:
        network = RandomNetwork(seed, 5, wide=True)
        try:
            host, examples, borders = host_of(network, network.example, "ethos-u85-256" if seed % 2 else "imxrt700")
        except MicroNpuError:
            continue
        direct = program_of(host.module, examples)
        if direct is not None:
            compared += 1
            assert direct == by_executorch(MethodPart(host, examples, borders, ())), seed
    assert compared >= 3


class Float(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.atan2(torch.relu(x) + x, x)


def test_what_else_is_on_the_host_goes_through_executorchs_compiler() -> None:
    host, examples, _ = host_of(Float(), (torch.randn(1, 8),), "imxrt700-neutron")
    assert program_of(host.module, examples) is None
