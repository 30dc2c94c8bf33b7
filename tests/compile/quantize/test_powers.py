"""Logarithms of powers by those of amplitudes: where they are found, that they are equal, and what int16 gains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.compile.small import decibels
from torch import nn

import micronpu
from micronpu.frontend.exported import graph_module
from micronpu.frontend.graphs import GraphModule
from micronpu.frontend.program import overload_name
from micronpu.frontend.run import elementwise
from micronpu.quantize.calibrate import calibrate_and_quantize
from micronpu.quantize.powers import logarithms_of_powers
from micronpu.targets.ethosu.compat import EthosUQuantizer
from micronpu.targets.ethosu.options import EthosUOptions

OPTIONS = EthosUOptions("ethos-u55-128")
QUANTIZER = EthosUQuantizer(OPTIONS)


class Spectrum(nn.Module):
    """Two octaves with factors of their bands, in pairs; the second one is far below the first one."""

    def __init__(self, then: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.convolutions = nn.ModuleList(nn.Conv1d(1, 6, 32, 16, bias=i % 2 == 0) for i in range(4))
        for convolution in self.convolutions[2:]:
            for parameter in convolution.parameters():
                parameter.data *= 0.01
        self.factors = nn.Buffer(torch.logspace(0, 1, 10)[:, None, None])
        self.then = then

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b, c, d = (convolution(x) for convolution in self.convolutions)
        pairs = torch.stack([a, -b], -1), torch.stack([c, d.neg()], -1)
        return self.then(torch.cat(pairs, 1)[:, 2:] * self.factors)


def power(x: torch.Tensor) -> torch.Tensor:
    return (x * x).sum(3)


def twice(x: torch.Tensor) -> torch.Tensor:
    return torch.log(power(x).sqrt().transpose(1, 2).square() + 1e-9)


def exported(then: Callable[[torch.Tensor], torch.Tensor]) -> GraphModule:
    return graph_module(torch.export.export(Spectrum(then).eval(), (samples()[0],)))


def samples(count: int = 12) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(1, 1, 160, generator=generator) * 10.0 ** -(i % 4) for i in range(count)]


def names(module: GraphModule) -> list[str]:
    return [overload_name(node).split(".")[0] for node in module.graph.nodes if overload_name(node)]


@pytest.mark.parametrize("then", [twice, lambda x: torch.log(1e-9 + power(x))], ids=["root and square", "sum"])
def test_a_logarithm_is_computed_of_each_part_and_factors_are_in_the_weights(then):
    module, changed = exported(then), exported(then)
    assert logarithms_of_powers(changed, QUANTIZER.capabilities)
    changed.graph.eliminate_dead_code()
    changed.recompile()
    assert decibels([(changed(x), module(x)) for x in samples()]) > 90
    assert not {"sqrt", "square", "sum", "stack", "log", "mul"} & set(names(changed))
    assert sum(n.target is elementwise for n in changed.graph.nodes) == 4 and names(changed).count("conv1d") == 4


@pytest.mark.parametrize(
    "then",
    [
        lambda x: torch.log(power(x)),
        lambda x: torch.log(power(x).sqrt() + 1e-9),
        lambda x: torch.log((x * x).sum(1) + 1e-9),
        lambda x: torch.log(x.abs().sum(3) + 1e-9),
        lambda x: torch.log(2 * power(x) + 1e-9),
        lambda x: torch.sqrt(power(x) + 1e-9),
    ],
    ids=["zero", "magnitude", "many", "no squares", "factor", "no logarithm"],
)
def test_other_functions_stay(then):
    assert not logarithms_of_powers(exported(then), QUANTIZER.capabilities)


def quantized(**options: Any) -> GraphModule:
    quantizer = EthosUQuantizer(EthosUOptions("ethos-u55-128", **options), activations="int16")
    return calibrate_and_quantize(exported(twice), [(x,) for x in samples()], quantizer)


@torch.no_grad()
def test_int16_computes_powers_over_many_decibels():
    exact = exported(twice)
    ours, before = (quantized(disabled_passes=names) for names in ((), ("logarithms_of_powers",)))
    for x in samples():
        assert decibels([(ours(x), exact(x))]) > 60
    assert decibels([(before(x), exact(x)) for x in samples()]) < 20


def test_weights_in_two_parts_are_added_in_int16():
    made = names(quantized())
    assert made.count("conv1d") == 8 and made.count("add") == 4 + 2 + made.count("log")


@pytest.mark.sweep
@pytest.mark.parametrize("target", ["corstone300", "ethos-u85-256"])
def test_the_program_is_as_near_to_float(target):
    data = [(x,) for x in samples()]
    program = micronpu.compile(Spectrum(twice).eval(), data[0], target, calibration=data, quantization="int16")
    exact = exported(twice)
    assert decibels([(program.run(x), exact(x)) for x in samples()]) > 50
