"""How near a finished program is to its float model, on inputs that calibration has not seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.compile.small import Tensors
from torch import nn

import micronpu

_FIRST, _OTHERS = ("imxrt700", "ethos-u55-128"), ("ethos-u85-256", "cortex-m55")
BACKENDS = [*_FIRST, *(pytest.param(target, marks=pytest.mark.slow) for target in _OTHERS)]
"""A target of each kind, the parameters of a test; what one of two that choose grids alike shows, is slow."""


def decibels(model: nn.Module, draw: Callable[[torch.Generator], Tensors], target: str, **options: Any) -> list[float]:
    """The signal-to-noise ratio of each result over eight held-out inputs, in dB.

    Args:
        draw: makes the inputs of a call.
    """
    random = torch.Generator().manual_seed(0)
    calibration = [draw(random) for _ in range(24)]
    program = micronpu.compile(model, calibration[0], target, calibration=calibration, verify=False, **options)
    wanted: list[list[torch.Tensor]] = []
    given: list[list[torch.Tensor]] = []
    for _ in range(8):
        inputs = draw(random)
        with torch.no_grad():
            wanted.append(_several(model(*(x.clone() for x in inputs))))
        given.append(_several(program.run(*inputs)))
    return [
        sqnr_of(torch.cat([w.flatten() for w in ws]), torch.cat([g.flatten() for g in gs]))
        for ws, gs in zip(zip(*wanted, strict=True), zip(*given, strict=True), strict=True)
    ]


def _several(result: Any) -> list[torch.Tensor]:
    return [torch.as_tensor(r) for r in (result if isinstance(result, (tuple, list)) else (result,))]


def sqnr_of(wanted: torch.Tensor, given: torch.Tensor) -> float:
    """Of the wanted values and the error, in dB."""
    signal, noise = wanted.double().square().sum(), (wanted.double() - given.double()).square().sum()
    return float("inf") if not noise else float(10 * torch.log10(signal / noise))
