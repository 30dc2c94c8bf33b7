"""Idioms of networks that once fell apart into several partitions on an Ethos-U."""

from __future__ import annotations

import pytest
import torch
from tests.compile.small import Small, Tensors, conv
from torch import nn

import micronpu


def _step_with_caches(_: Small, *inputs: torch.Tensor) -> Tensors:
    """Attention of one new row: the caches are chosen by the position, multiplied by, and returned."""
    query, key, value, keys, values, here = inputs
    keys, values = torch.where(here > 0.5, key, keys), torch.where(here > 0.5, value, values)
    return (query @ keys.transpose(-1, -2) / 4).softmax(-1) @ values, keys, values


def _windows(m: Small, x: torch.Tensor) -> torch.Tensor:
    """Twins' attention within windows of 2 x 2, behind a norm over channels."""
    centered = x - x.mean(1, keepdim=True)
    x = centered / (x.var(1, unbiased=False, keepdim=True).sqrt() + 1e-5)
    n, c, h, w = x.shape
    x = x.reshape(n, c, h // 2, 2, w // 2, 2).permute(0, 2, 4, 1, 3, 5).reshape(-1, c, 2, 2)
    query, key, value = (layer(x).reshape(-1, 2, 8, 4).transpose(2, 3) for layer in (m.query, m.key, m.value))
    y = (query @ key.transpose(-1, -2) * 8**-0.5).softmax(-1) @ value
    y = y.reshape(n, h // 2, w // 2, 2, 2, 2, 8).permute(0, 3, 6, 1, 4, 2, 5).reshape(n, c, h, w)
    return m.out(y) + centered


def _layers(*names: str) -> dict[str, nn.Module]:
    return {name: conv(16, 16, 1) for name in names}


NETWORKS = {
    "caches": (Small(_step_with_caches), ((1, 2, 1, 16),) * 3 + ((1, 2, 12, 16),) * 2 + ((1, 1, 12, 1),)),
    "windows": (Small(_windows, **_layers("query", "key", "value", "out")), ((1, 16, 8, 8),)),
}


@pytest.mark.sweep
@pytest.mark.parametrize("target", ["ethos-u55-128", pytest.param("ethos-u85-256", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", NETWORKS)
def test_one_partition(name: str, target: str):
    model, shapes = NETWORKS[name]
    random = torch.Generator().manual_seed(0)
    rows = [tuple(torch.randn(shape, generator=random) for shape in shapes) for _ in range(4)]
    program = micronpu.compile(model, rows[0], target, calibration=rows)
    assert not program.report.host, str(program.report)
    assert len(program.partitions) == 1
    assert not program.report.warnings
