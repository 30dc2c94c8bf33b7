"""Norms over rows that differ 30 times in size, whose squares differ 900 times."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tests.compile.nearness import BACKENDS, decibels, sqnr_of
from tests.compile.small import Small, Tensors
from torch import nn

import micronpu
from micronpu.ir.types import DType


def _by_hand(_: Small, x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def _of_columns(_: Small, x: torch.Tensor) -> torch.Tensor:
    y = x.transpose(1, 2)
    return (y - y.mean(1, keepdim=True)) / (y.var(1, unbiased=False, keepdim=True).sqrt() + 1e-5)


NORMS: dict[str, Small] = {
    "layer": Small(lambda m, x: m.norm(x), norm=nn.LayerNorm(32)),
    "rms": Small(lambda m, x: F.rms_norm(x, (32,))),
    "rms by hand": Small(_by_hand),
    "group": Small(lambda m, x: m.norm(x.reshape(1, 16, 4, 8)), norm=nn.GroupNorm(16, 16)),
    "instance": Small(lambda m, x: m.norm(x), norm=nn.InstanceNorm1d(16)),
    "normalize": Small(lambda m, x: F.normalize(x, dim=-1)),
    "columns": Small(_of_columns),
}


def rows(times: float) -> Callable[[torch.Generator], Tensors]:
    def draw(random: torch.Generator) -> Tensors:
        sizes = torch.exp(torch.rand(1, 16, 1, generator=random) * math.log(times)) * 3 / times
        return (torch.randn(1, 16, 32, generator=random) * sizes,)

    return draw


def with_int8_io(model: nn.Module, draw: Callable[[torch.Generator], Tensors]) -> float:
    """dB where nothing but the input and the result is rounded to int8."""
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        seen = torch.cat([draw(random)[0] for _ in range(24)])
        results = torch.cat([model(x[None]) for x in seen])
        wanted, given = [], []
        for _ in range(8):
            (x,) = draw(random)
            wanted.append(model(x).flatten())
            given.append(_rounded(model(_rounded(x, seen)), results).flatten())
    return sqnr_of(torch.cat(wanted), torch.cat(given))


def _rounded(x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    low, high = (float(end) for end in seen.aminmax())
    step = (high - low) / 255
    return (x / step).round().clamp(round(low / step), round(high / step)) * step


@pytest.mark.sweep
@pytest.mark.parametrize("target", BACKENDS)
@pytest.mark.parametrize("name", NORMS)
def test_small_rows_keep_their_shape(name: str, target: str):
    (found,) = decibels(NORMS[name], rows(30.0), target)
    assert found >= with_int8_io(NORMS[name], rows(30.0)) - 1.5


def test_a_row_of_zeros_takes_no_steps_from_the_others():
    def draw(random: torch.Generator) -> Tensors:
        (x,) = rows(30.0)(random)
        return (x * (torch.arange(16) != 5)[:, None],)

    assert min(decibels(NORMS["layer"], draw, "imxrt700")) >= 20.0
    assert min(decibels(NORMS["normalize"], draw, "imxrt700")) >= 20.0


@pytest.mark.sweep
@pytest.mark.parametrize("name", NORMS)
def test_rows_of_one_size_stay_in_int8(name: str):
    random = torch.Generator().manual_seed(0)
    data = [rows(1.0)(random) for _ in range(8)]
    program = micronpu.compile(NORMS[name], data[0], "ethos-u55-128", calibration=data, verify=False)
    assert all(t.type.dtype is not DType.INT16 for p in program.partitions for n in p.graph.nodes for t in n.outputs)


def one_in_thirty(random: torch.Generator) -> Tensors:
    """Rows of one size but for a few that are eight times larger, and of no weight in what comes out."""
    x = torch.randn(1, 16, 32, generator=random)
    if float(torch.rand(1, generator=random)) < 0.5:
        x[:, int(torch.randint(0, 16, (1,), generator=random))] *= 8
    return (x / 8,)


@pytest.mark.sweep
@pytest.mark.parametrize("target", BACKENDS)
@pytest.mark.parametrize("name", ["layer", "group", "rms by hand"])
def test_a_few_large_rows_leave_the_others_their_squares(name: str, target: str):
    (found,) = decibels(NORMS[name], one_in_thirty, target)
    assert found >= with_int8_io(NORMS[name], one_in_thirty) - 1.5


def test_a_setting_goes_before_what_is_seen():
    random = torch.Generator().manual_seed(0)
    data = [rows(30.0)(random) for _ in range(8)]
    settings = {"operators": {"layer_norm": {"activation_observer": "minmax"}}}
    model = NORMS["layer"]
    program = micronpu.compile(model, data[0], "ethos-u55-128", calibration=data, verify=False, quantization=settings)
    assert all(t.type.dtype is not DType.INT16 for p in program.partitions for n in p.graph.nodes for t in n.outputs)
