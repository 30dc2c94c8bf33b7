"""Training through logarithms, roots and reciprocals of what a grid rounds to 0."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tests.compile.small import Small, conv, linear
from torch import nn

import micronpu
from micronpu.base.errors import ModelError
from micronpu.neutron import NeutronQuantizer, calibrate_and_quantize

X = torch.randn(1, 1, 8, 8, generator=torch.Generator().manual_seed(0))

FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "log": lambda x: torch.log(x + 1e-3),
    "log10": lambda x: torch.log10(x + 1e-4),
    "sqrt": lambda x: torch.sqrt(x),
    "rsqrt": lambda x: torch.rsqrt(x + 1e-3),
    "reciprocal": lambda x: 1.0 / (x + 1e-3),
    "power": lambda x: (x + 1e-4) ** 0.3,
}


def network(function: Callable[[torch.Tensor], torch.Tensor]) -> Small:
    """Behind a ReLU, so that many values are 0."""
    layers = {"first": conv(1, 4), "last": linear(4 * 64, 3)}
    return Small(lambda m, x: m.last(function(F.relu(m.first(x))).flatten(1)), **layers)


def train(module: nn.Module) -> None:
    random = torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(module.parameters(), 1e-6)
    for _ in range(3):
        x, y = torch.randn(4, 1, 8, 8, generator=random), torch.randint(0, 3, (4,), generator=random)
        optimizer.zero_grad()
        F.cross_entropy(module(x), y).backward()
        optimizer.step()


@pytest.mark.sweep
@pytest.mark.parametrize("target", ["imxrt700", "ethos-u55-128"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_trains_and_runs(name: str, target: str) -> None:
    program = micronpu.compile(network(FUNCTIONS[name]), X, target, train=train)
    (result,) = program.run(X)
    assert bool(result.isfinite().all())
    assert torch.allclose(result, program.quantized(X)[0], atol=0.1 * float(result.abs().max()) + 1e-6)


def test_the_range_is_that_of_what_the_program_can_compute() -> None:
    """The logarithm of half a step is the lowest that is observed, and not that of a value of 0."""
    program = micronpu.compile(network(FUNCTIONS["log"]), X, "ethos-u55-128", train=train)
    ((log, step),) = [
        (n.output.type, n.inputs[0].type) for p in program.partitions for n in p.graph.nodes if "log" in str(n.origin)
    ]
    lowest = (-128 - log.zero_point) * log.scale
    assert lowest == pytest.approx(float(torch.tensor(step.scale / 2).log()), abs=2 * log.scale)


def test_what_stays_endless_is_named() -> None:
    endless = network(lambda x: torch.exp(1000.0 * x))
    with pytest.raises(ModelError, match=r"`exp` \(\S+\.py:\d+\) has computed NaN or infinity in training"):
        micronpu.compile(endless, X, "ethos-u55-128", train=lambda module: module(100 * X))


def test_with_a_training_no_calibration_data_is_needed() -> None:
    exported = torch.export.export(network(torch.tanh), (X,))
    quantized = calibrate_and_quantize(exported, [], NeutronQuantizer(is_qat=True), is_qat=True, train_fn=train)
    program = micronpu.compile(quantized, X, "imxrt700")
    assert not program.report.host
    with pytest.raises(ModelError, match="The calibration data is empty"):
        calibrate_and_quantize(exported, [], NeutronQuantizer(is_qat=True), is_qat=True)
