"""Averages and clamps whose results are a small part of what they read: on its grid they would have a few steps."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from tests.compile.nearness import sqnr_of
from torch import Tensor, nn
from torch.nn import functional as F

import micronpu
from micronpu.frontend.program import is_quantize
from micronpu.quantize.observers import FinerObserver
from micronpu.quantize.observing import FixedObserver

TARGETS = ("imxrt700", "ethos-u55-128", "ethos-u85-256", "cortex-m55")


class Net(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def image(seed: int) -> Tensor:
    return torch.randn(1, 4, 14, 16, generator=torch.Generator().manual_seed(seed))


def compiled(function: Callable[[Tensor], Tensor], target: str = TARGETS[0]) -> micronpu.CompiledProgram:
    data = [image(seed) for seed in range(32)]
    return micronpu.compile(Net(function).eval(), data[0], target, calibration=data)


def nearness(program: micronpu.CompiledProgram, function: Callable[[Tensor], Tensor]) -> float:
    rows = [image(100 + seed) for seed in range(4)]
    given = torch.cat([torch.as_tensor(program.run(x)).flatten() for x in rows])
    return sqnr_of(torch.cat([function(x).flatten() for x in rows]), given)


AVERAGES = {
    "windows": lambda x: F.avg_pool2d(x, (2, 7), (2, 3)),
    "windows of a sequence": lambda x: F.avg_pool1d(x[0], 8, 2),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, (2, 3)),
    "padding that does not count": lambda x: F.avg_pool2d(x, 5, 3, 2, count_include_pad=False),
    "windows that reach over": lambda x: F.avg_pool2d(x, 5, 4, 2, ceil_mode=True),
    "whole": lambda x: x.mean((2, 3)),
}
CLAMPS = {
    "of what others read": lambda x: torch.cat([(t := 30 * x).clamp(-0.2, 0.3) * 2, t * 0.004], 1),
    "one after the other": lambda x: (30 * x).clamp(max=0.3).clamp(min=-0.2) * 2,
    "moved before": lambda x: (30 * x).flip(1).clamp(-0.2, 0.3) + 1,
    "joined": lambda x: torch.cat([(30 * x).clamp(-0.2, 0.3), x], 1) * 2,
    "joined with its like": lambda x: torch.cat([(30 * x).clamp(-0.2, 0.3), (7 * x).clamp(-0.3, 0.2)], 1) + 1,
}


@pytest.mark.sweep
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", AVERAGES)
def test_averages_that_cancel_out_have_steps(case, target):
    """On the grid of what is averaged they were at 22 to 27 dB."""
    program = compiled(AVERAGES[case], target)
    assert nearness(program, AVERAGES[case]) > 28
    assert not program.report.host or target.startswith("cortex")


@pytest.mark.sweep
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", CLAMPS)
def test_clamped_values_have_steps(case, target):
    """Neither -0.2 nor 0.3 is a step of a grid for values up to 100: all was 0."""
    program = compiled(CLAMPS[case], target)
    assert nearness(program, CLAMPS[case]) > 20
    assert not program.report.host or target.startswith("cortex")


def all_qparams(program: micronpu.CompiledProgram, operator: str) -> list[tuple[float, int]]:
    """Of the results of an operator."""
    nodes = [n for n in program.quantized.graph.nodes if is_quantize(n)]
    return [(float(n.args[1]), int(n.args[2])) for n in nodes if operator in n.args[0].name]


def test_what_only_clamps_read_ends_where_they_do():
    function = lambda x: (3 * x).exp().clamp(-0.2, 0.3) * 2  # noqa: E731
    program = compiled(function)
    ((scale, _),) = all_qparams(program, "exp")
    assert scale == pytest.approx(0.3 / 255, rel=0.01)
    assert nearness(program, function) > 35  # all was 0
    for clamp in (lambda x: x.clamp(-0.2, 0.3), torch.sigmoid):
        ((scale, _),) = all_qparams(compiled(lambda x, f=clamp: torch.cat([t := x.sin() * 9, f(t)], 1)), "mul")
        assert scale > 17 / 255  # others read it, too


@pytest.mark.parametrize(
    ("function", "end"),
    [
        (lambda x: (90 * x).sigmoid(), math.log(511)),
        (lambda x: (90 * x).tanh() * 2, math.atanh(255 / 256)),
        (lambda x: (90 * x).flip(1).sigmoid(), math.log(511)),
        (
            lambda x: torch.cat([y.sigmoid() if i else y.tanh() for i, y in enumerate((90 * x).chunk(2, 1))]),
            math.log(511),
        ),
    ],
)
def test_what_only_a_sigmoid_reads_ends_where_its_integers_do(function, end):
    program = compiled(function)
    ((scale, zero_point),) = all_qparams(program, "mul")[:1]
    assert (scale, zero_point) == (pytest.approx(2 * end / 255, rel=0.02), 0)


def test_a_saturated_sigmoid_is_zero():
    """With a range that ended where 1 / 512 is rounded to 1 / 256 or to 0, all small probabilities were 1 / 256."""
    program = compiled(lambda x: (90 * x).sigmoid())
    assert not torch.as_tensor(program.run(torch.full((1, 4, 14, 16), -9.0))).any()


def test_what_lies_very_far_beyond_a_clamp_keeps_its_qparams():
    """Kernels count steps in int32: exp(80) in steps of 0.001 overflowed to the lowest one."""
    ((scale, _),) = all_qparams(compiled(lambda x: (30 * x).exp().clamp(-0.2, 0.3) * 2), "exp")
    assert scale > 1e20


def test_what_is_joined_with_a_clamp_is_not_clipped():
    """The grid that they share may be that of what is clamped, which has to reach as far as both."""
    function = lambda x: torch.cat([x.sin().clamp(-0.2, 0.3), 50 * x], 1)  # noqa: E731
    assert nearness(compiled(function), function) > 35


def test_smaller_qparams_leave_range_for_other_averages():
    observer = FinerObserver(torch.int8, -128, 127, torch.per_tensor_affine, times=3.0, room=1.25)
    operand = FinerObserver(torch.int8, -128, 127, torch.per_tensor_affine, times=3.0, room=1.0)
    operand(torch.linspace(-10, 10, 1000))
    observer.observe_operand(operand)
    observer(torch.linspace(-1, 1, 1000))
    assert float(observer.calculate_qparams()[0]) == pytest.approx(1.25 * 2 / 255)
    observer(torch.tensor([-4.0, 4.0]))  # 2.5 times as fine is no longer worth it
    assert float(observer.calculate_qparams()[0]) == float(operand.calculate_qparams()[0])


def test_an_operand_with_fixed_qparams_has_nothing_to_learn():
    """A second calibration, with known statistics, asks every observer, and failed with an AttributeError."""
    observer = FinerObserver(torch.int8, -128, 127, torch.per_tensor_affine, times=3.0, room=1.25)
    observer.observe_operand(FixedObserver(torch.int8, 1 / 256, -128, -128, 127, torch.per_tensor_affine))
    assert not observer.is_done
    observer.is_calibrated = True
    assert observer.is_done
