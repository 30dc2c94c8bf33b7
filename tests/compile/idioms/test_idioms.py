"""No network of this folder is far from float without a word, where another way to int8 is near."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from tests.compile.idioms import ALL
from tests.compile.idioms.bounds import DECIBELS
from tests.compile.idioms.networks import network
from tests.compile.nearness import sqnr_of
from tests.fuzz.unequal import with_qparams
from torch.fx import GraphModule
from torch.utils._pytree import tree_leaves

import micronpu
from micronpu.quantize.data import held_out_rows

TARGETS = ("imxrt700", "ethos-u55-128", "ethos-u85-256", "cortex-m55")
_NEAR, _BEHIND = 25.0, 3.0
"""dB above which nobody asks, and below the other way to int8: every value on a grid of its smallest and largest."""
_SAMPLED = 8
"""One network in so many is compiled in every run of the tests, for the targets in turn; all others are slow."""


def _cases() -> list[object]:
    found: list[object] = []
    for number, name in enumerate(ALL):
        for place, target in enumerate(TARGETS):
            is_quick = number % _SAMPLED == 0 and number // _SAMPLED % len(TARGETS) == place
            found.append(pytest.param(name, target, marks=() if is_quick else pytest.mark.slow))
    return found


@pytest.mark.parametrize(("name", "target"), _cases())
def test_near_float_or_a_word(name: str, target: str) -> None:
    model, random = network(name), torch.Generator().manual_seed(0)
    data = [model.draw(random) for _ in range(24)]
    held_out = [model.draw(random) for _ in range(8)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", micronpu.AccuracyWarning)
        program = micronpu.compile(model, data[0], target, calibration=data)
    assert "which was not done for this call" not in str(program.report)
    with torch.no_grad():
        wanted = [_leaves(model(*(x.clone() for x in row))) for row in held_out]
    found = _nearness(wanted, [_leaves(program.run(*row)) for row in held_out])
    assert all(f >= bound for f, bound in zip(found, DECIBELS[name], strict=True)), (found, DECIBELS[name])
    if program.report.warnings or min(found) >= _NEAR:
        return
    judged = held_out_rows(len(data), None)
    seen = [row for number, row in enumerate(data) if number not in judged]
    other = _nearness(wanted, with_qparams(_exported(model, data[0]), seen, held_out))
    assert all(f >= min(_NEAR, o - _BEHIND) for f, o in zip(found, other, strict=True)), (found, other)


def test_every_network_has_a_bound() -> None:
    assert set(DECIBELS) == set(ALL) and len(ALL) >= 90


def _exported(model: torch.nn.Module, example: tuple[torch.Tensor, ...]) -> GraphModule:
    names = [name for name in ("code", "graph", "meta") if hasattr(model, name)]
    assert not names, f"torch itself makes no module of a program with {names}"
    module = torch.export.export(model, example).module(check_guards=False)
    assert isinstance(module, GraphModule)
    return module


def _leaves(results: object) -> list[torch.Tensor]:
    return [torch.as_tensor(r).detach() for r in tree_leaves(results)]


def _nearness(wanted: list[list[torch.Tensor]], given: list[list[torch.Tensor]]) -> list[float]:
    """Of each float output, in dB; nothing of integers, of which the report tells the share that is right."""
    found = []
    for ws, gs in zip(zip(*wanted, strict=True), zip(*given, strict=True), strict=True):
        if ws[0].is_floating_point():
            decibels = sqnr_of(torch.cat([w.flatten() for w in ws]), torch.cat([g.float().flatten() for g in gs]))
            found.append(-math.inf if math.isnan(decibels) else decibels)
    return found
