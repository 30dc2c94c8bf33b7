"""What reports of many small networks say to try, for flaws of the network or of its data, does what it says.

Each flaw names how its hints in words are followed.  Code is executed as it is written.
"""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, TypeAlias

import pytest
import torch
from tests.compile.compiler.test_tries import evaluated, keyword
from tests.compile.compiler.tries import Of
from torch import nn

import micronpu
from micronpu.report.delegation import DelegationReport
from micronpu.report.warnings import ReportWarning

Data: TypeAlias = list[torch.Tensor]
Change: TypeAlias = Callable[[nn.Module, Data], tuple[nn.Module, Data]]
"""Of a network without the flaw, and of its data."""

TARGETS = ("corstone300", "ethos-u55-128", "imxrt700", "cortex-m55", "ethos-u85-256", "rp2350")
LOOKS = re.compile(r"micronpu\.\w+\(model, data, target\)|micronpu\.fix|micronpu\.evaluate on labelled samples[^;]*")
"""Hints that show more, and change nothing; `test_tries` calls them."""


def mlp() -> tuple[nn.Module, tuple[int, ...]]:
    return nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)), (16,)


def conv2d() -> tuple[nn.Module, tuple[int, ...]]:
    first, last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, 2)
    return nn.Sequential(first, nn.ReLU(), last, nn.Hardswish(), nn.Flatten(), nn.Linear(200, 4)), (3, 12, 12)


def conv1d() -> tuple[nn.Module, tuple[int, ...]]:
    return nn.Sequential(nn.Conv1d(4, 8, 3), nn.GELU(), nn.Flatten(), nn.Linear(8 * 14, 4)), (4, 16)


def attention() -> tuple[nn.Module, tuple[int, ...]]:
    def weighted(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        weights = (self.query(y) @ self.key(y).transpose(1, 2) / 4).softmax(-1)
        return self.out((x + weights @ self.value(y)).mean(1))  # type: ignore[no-any-return]

    layers = {name: nn.Linear(16, 16) for name in ("query", "key", "value")}
    return Of(weighted, norm=nn.LayerNorm(16), out=nn.Linear(16, 4), **layers), (8, 16)


KINDS = (mlp, conv2d, conv1d, attention)


def behind(function: Callable[[torch.Tensor], Any]) -> Change:
    """A network with a function behind it."""
    return lambda net, data: (Of(lambda self, x: function(self.net(x)), net=net).eval(), data)


def before(function: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    """A network that has a function of its inputs."""
    return lambda net, data: (Of(lambda self, x: self.net(function(x)), net=net).eval(), data)


def of_data(function: Callable[[Data], Data]) -> Change:
    return lambda net, data: (net, function(data))


def keep(net: nn.Module, data: Data) -> tuple[nn.Module, Data]:
    return net, data


def uneven(data: Data) -> Data:
    return [torch.cat([x[:, :1] * 1000 + 500, x[:, 1:]], 1) for x in data]


def standardised(data: Data) -> Data:
    every = torch.cat(uneven(data))
    deviation, mean = torch.std_mean(every, [axis for axis in range(every.dim()) if axis != 1], keepdim=True)
    return [(x - mean) / deviation for x in uneven(data)]


def two_largest(y: torch.Tensor) -> torch.Tensor:
    a, b, c, d = y.split(1, -1)
    first, second = torch.maximum(a, b), torch.maximum(c, d)
    smaller = torch.maximum(torch.minimum(a, b), torch.minimum(c, d))
    return torch.cat([torch.maximum(first, second), torch.maximum(torch.minimum(first, second), smaller)], -1)


@dataclass(frozen=True)
class Flaw:
    """A reason to warn.

    Attributes:
        has: changes a network and its data so that they have it.
        cures: how hints are followed, by their first words, from the network without it.
    """

    has: Change
    cures: dict[str, Change] = field(default_factory=dict)


SAMPLES: dict[str, Change] = {"some dozens of typical inputs": keep}
SCORES: dict[str, Change] = {
    "return the scores and choose among them in the application": keep,
    "torch.minimum and torch.maximum sort a few values": behind(two_largest),
}
ASIDE = re.compile(
    r"\bor\b|that differ|\(half the range in decibels\)|where values of that size are meant|"
    r"which quantizes it|[,; ]"
)
"""What a hint says beside what to try."""
SMALLER = before(lambda x: torch.where(x > 2.0, -1.0, x))
POWERS: dict[str, Change] = {"magnitudes instead of powers": behind(torch.abs), "that part before the model": keep}
FLAWS = {
    "none": Flaw(keep),
    "large": Flaw(of_data(lambda data: [x * 1000 for x in data])),
    "features": Flaw(
        of_data(uneven),
        {"features standardised before the model or first in it, (x - mean) / deviation": of_data(standardised)},
    ),
    "single": Flaw(of_data(lambda data: data[:1]), SAMPLES),
    "repeated": Flaw(of_data(lambda data: data[:1] * 12), SAMPLES),
    "few": Flaw(of_data(lambda data: data[:2] * 6), SAMPLES),
    "zeros": Flaw(of_data(lambda data: [x * 0 for x in data]), SAMPLES),
    "outlier": Flaw(
        of_data(lambda data: [*data[:10], data[10] * 100, *data[11:]]),
        {"calibration data without them, if they are not typical": keep},
    ),
    "parts": Flaw(
        behind(lambda y: torch.cat([y * 1000, y.sigmoid()], -1)),
        {
            "parts that are returned separately, each with its own qparams": behind(lambda y: (y * 1000, y.sigmoid())),
            "scaled to similar sizes": behind(lambda y: torch.cat([y, y.sigmoid()], -1)),
        },
    ),
    "mask": Flaw(
        before(lambda x: torch.where(x > 2.0, -1e5, x)),
        {
            "padding and masks no larger than the values beside them": SMALLER,
            "scores that differ by more of their range, as before a softmax": SMALLER,
        },
    ),
    "logarithm": Flaw(behind(lambda y: torch.log(y.square() + 1e-6)), POWERS),
    "root": Flaw(behind(lambda y: y.square().sum(-1, keepdim=True).sqrt()), POWERS),
    "quotient": Flaw(
        behind(lambda y: 1 / (y.square() + 1e-3)),
        {
            "divisors that stay away from zero, as with clamp(min=...)": behind(lambda y: 1 / y.square().clamp(min=1)),
            "that part before the model": keep,
        },
    ),
    "sure": Flaw(
        behind(lambda y: torch.softmax(200 * y, -1)),
        {"scores that differ by more of their range, as before a softmax": keep},
    ),
    "largest": Flaw(behind(lambda y: torch.topk(y, 2).values), SCORES),
    "angle": Flaw(
        behind(lambda y: torch.atan2(y, y.flip(-1))),
        {"return both operands and compute the angle in the application": behind(lambda y: (y, y.flip(-1)))},
    ),
    "exponential": Flaw(behind(lambda y: torch.exp(8 * y))),
    "cancelled": Flaw(behind(lambda y: (1000 + y) - 1000)),
    "sums": Flaw(before(lambda x: x.cumsum(-1))),
    "tiny": Flaw(behind(lambda y: y * 1e-8), {"the trained weights": keep, "larger units": behind(lambda y: 1e3 * y)}),
}


def alike(net: nn.Module, data: Data) -> tuple[nn.Module, Data]:
    """The network with a factor for each of its scores."""
    with torch.no_grad():
        sizes = torch.cat([net(x) for x in data]).square().mean(0, keepdim=True).sqrt()
    return behind(lambda y: y / sizes)(net, data)


ALWAYS: dict[str, Change] = {
    "parts that are returned separately, each with its own qparams": behind(lambda y: tuple(y.split(1, -1))),
    "scaled to similar sizes": alike,
    "calibration samples with such values": of_data(lambda data: [*data, *(1.5 * x for x in data)]),
}
"""How hints are followed that no flaw is needed for; from the network with its flaw."""


@dataclass(frozen=True)
class Given:
    """What a seed compiles."""

    flaw: Flaw
    net: nn.Module
    data: Data
    target: str
    quantization: str

    @classmethod
    def of(cls, name: str, seed: int) -> Given:
        chosen = random.Random(f"{name} {seed}")
        torch.manual_seed(seed)
        net, shape = chosen.choice(KINDS)()
        generator = torch.Generator().manual_seed(seed)
        data = [torch.randn(1, *shape, generator=generator) for _ in range(24)]
        return cls(FLAWS[name], net.eval(), data, chosen.choice(TARGETS), chosen.choice(("int8", "auto")))

    def report(self, change: Change | None = None, quantization: str | None = None) -> DelegationReport:
        net, data = (change or self.flaw.has)(self.net, self.data)
        how: Any = self.quantization if quantization is None else evaluated(quantization)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", micronpu.AccuracyWarning)
            return micronpu.compile(net, data[0], self.target, calibration=data, quantization=how).report


def behind_flaw(flaw: Flaw, change: Change, net: nn.Module, data: Data) -> tuple[nn.Module, Data]:
    return change(*flaw.has(net, data))


def follow(hint: str, flaw: Flaw) -> tuple[list[str], list[Change]]:
    """Return the arguments of `compile` and the changes that a hint names.  Nothing else is in it."""
    arguments, changes = [], []
    while (found := re.search(r"\bquantization=", hint)) is not None:
        argument = keyword(hint[found.start() :])
        assert argument is not None, hint
        arguments.append(argument[1])
        hint = hint.replace(argument[0], "")
    for words, change in flaw.cures.items():
        if words in hint:
            changes.append(change)
            hint = hint.replace(words, "")
    for words, change in ALWAYS.items():
        if words in hint:
            changes.append(partial(behind_flaw, flaw, change))
            hint = hint.replace(words, "")
    rest = LOOKS.sub("", hint)
    assert not ASIDE.sub("", rest), f"no test tries: {rest}"
    return arguments, changes


def is_better(before: ReportWarning, after: DelegationReport) -> bool:
    """Whether a warning is gone, or its figure rises."""
    same = [w for w in after.warnings if (w.rule, w.output) == (before.rule, before.output)]
    return not same or any(w.sqnr is not None and w.sqnr > (before.sqnr or -1e9) for w in same)


def worst(report: DelegationReport) -> float:
    assert report.accuracy is not None
    return min(output.float_model.sqnr for output in report.accuracy.outputs if output.float_model is not None)


@pytest.mark.sweep(8)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", FLAWS)
def test_what_a_report_says_to_try_helps(name: str, seed: int) -> None:
    given = Given.of(name, seed)
    report = given.report()
    again = cache(lambda change, quantization: given.report(change, quantization))
    for warning in report.warnings:
        arguments, changes = follow(warning.hint, given.flaw)
        for argument in arguments:
            after = again(None, argument)
            is_search = argument == "'auto'"  # which may find nothing better
            rises = worst(after) >= worst(report) if is_search else worst(after) > worst(report)
            assert is_better(warning, after) or rises, f"{warning.what}\n{argument}"
        for change in changes:
            after = again(change, None)
            assert is_better(warning, after), f"{warning.what}\n{warning.hint}\n{after.warnings}"
    for verdict in report.host:
        for reason in verdict.reasons:
            arguments, changes = follow(reason.hint, given.flaw)
            for argument in arguments:
                assert verdict.node not in left(again(None, argument), verdict in report.in_float, "node")
            for change in changes:
                assert verdict.operator not in left(again(change, None), verdict in report.in_float, "operator")


def left(report: DelegationReport, in_float: bool, name: str) -> set[str]:
    """Names of the operators that are not on the NPU; or of those in float, as all are on the core of some targets."""
    return {getattr(verdict, name) for verdict in (report.in_float if in_float else report.host)}
