"""Small models from a function, quantized as a user would, for the tests of this folder."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule, Node

import micronpu
from micronpu.frontend.program import overload_name
from micronpu.neutron import NeutronQuantizer, calibrate_and_quantize

Tensors = tuple[torch.Tensor, ...]


class Small(nn.Module):
    """``function(self, *inputs)`` with modules or parameters as attributes, in evaluation mode."""

    def __init__(self, function: Callable[..., Any], **attributes: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.function = function
        for name, value in attributes.items():
            setattr(self, name, value)
        self.eval()

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(self, *inputs)


def image(*shape: int) -> torch.Tensor:
    return torch.randn(shape or (1, 8, 6, 6), generator=torch.Generator().manual_seed(len(shape)))


def conv(channels_in: int = 8, channels_out: int = 8, kernel: int = 3, **options: Any) -> nn.Conv2d:
    torch.manual_seed(channels_in + channels_out + kernel)
    return nn.Conv2d(channels_in, channels_out, kernel, **({"padding": kernel // 2} | options))


def linear(features_in: int = 8, features_out: int = 8, **options: Any) -> nn.Linear:
    torch.manual_seed(features_in + features_out)
    return nn.Linear(features_in, features_out, **options)


def batches(inputs: Sequence[torch.Tensor], count: int = 3) -> list[Tensors]:
    """Calibration data like the inputs; what is not float stays as it is."""
    random = torch.Generator().manual_seed(1)
    return [
        tuple(torch.randn(x.shape, generator=random) if x.is_floating_point() else x for x in inputs)
        for _ in range(count)
    ]


def quantized(model: nn.Module, inputs: Tensors, quantizer: Any = None) -> GraphModule:
    """The user's flow: export, calibrate, quantize."""
    exported = torch.export.export(model, inputs)
    return calibrate_and_quantize(exported, batches(inputs), quantizer or NeutronQuantizer())


def find(module: GraphModule, overload: str, number: int = 0) -> Node:
    """The node of a module that calls an ATen overload."""
    return [n for n in module.graph.nodes if overload_name(n) == overload][number]


def decibels(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """Signal to noise of results against expected values."""
    noise = sum(float((result - real).square().sum()) for result, real in pairs)
    return 10 * math.log10(sum(float(real.square().sum()) for _, real in pairs) / max(noise, 1e-30))


def against_float(model: nn.Module, data: list[tuple[torch.Tensor, ...]]) -> list[float]:
    """Signal to noise of every result of a model that is compiled as one partition, over four of its inputs."""
    program = micronpu.compile(model, data[0], "imxrt700", calibration=data)
    assert not program.report.host, str(program.report)
    assert program.report.partitions == 1
    with torch.no_grad():
        results = [(program.run(*batch), model(*batch)) for batch in data[:4]]
    return [decibels([(r[i], real[i]) for r, real in results]) for i in range(len(results[0][0]))]


def outputs(found: Any) -> tuple[torch.Tensor, ...]:
    """What a program or model gives, as a tuple also where it is one tensor."""
    return (found,) if isinstance(found, torch.Tensor) else tuple(found)
