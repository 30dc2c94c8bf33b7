"""Normalization and attention from a torch module to the finished program: on the NPU, close to the float module."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.compile.small import against_float, decibels, outputs
from torch import nn

import micronpu
from micronpu.frontend.program import overload_name
from micronpu.ir.lowering import Capabilities
from micronpu.quantize.decompose import decompose

TOKENS, WIDTH = 16, 32
SHAPE = (2, TOKENS, WIDTH)
CAUSAL = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()

Function = Callable[..., torch.Tensor]


def norm(x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (WIDTH,), torch.linspace(0.5, 2, WIDTH), torch.linspace(-1, 1, WIDTH))


def heads(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(2, TOKENS, 4, 8).transpose(1, 2)


def sdpa(x: torch.Tensor, y: torch.Tensor, **options: Any) -> torch.Tensor:
    return F.scaled_dot_product_attention(heads(x), heads(y), heads(x + y), **options)


def image(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(2, TOKENS, 4, 8)


# Name, function of x and y [2, 16, 32], decibels that the program has to reach against float.
ROWS: list[tuple[str, Function, float]] = [
    ("layer norm", lambda x, y: norm(x), 30),
    ("layer norm far from zero", lambda x, y: norm(x + 8), 26),
    ("layer norm of unequal rows", lambda x, y: norm(x * torch.linspace(0.5, 4, TOKENS)[:, None]), 26),
    # The grid of the squares reaches to the square of the outliers: 21 dB, where int8 input alone would allow 28.
    ("layer norm of outliers", lambda x, y: norm(x**3), 20),
    ("layer norm, two axes", lambda x, y: F.layer_norm(x, (TOKENS, WIDTH)), 30),
    ("rms norm", lambda x, y: F.rms_norm(x, (WIDTH,), torch.linspace(0.5, 2, WIDTH)), 30),
    (
        "group norm",
        lambda x, y: F.group_norm(image(x), 4, torch.linspace(0.5, 2, TOKENS), torch.linspace(-1, 1, TOKENS)),
        30,
    ),
    ("instance norm", lambda x, y: F.instance_norm(image(x)), 30),
    (
        "instance norm by statistics",
        lambda x, y: F.instance_norm(
            image(x), torch.linspace(-1, 1, 16), torch.linspace(0.5, 2, 16), use_input_stats=False
        ),
        34,
    ),
    ("attention", lambda x, y: sdpa(x, y), 27),
    ("attention, scale", lambda x, y: sdpa(x, y, scale=0.1), 27),
    ("attention, causal", lambda x, y: sdpa(x, y, is_causal=True), 27),
    ("attention, mask of booleans", lambda x, y: sdpa(x, y, attn_mask=CAUSAL), 27),
    ("attention, mask of numbers", lambda x, y: sdpa(x, y, attn_mask=torch.linspace(-2, 2, 256).view(16, 16)), 27),
    (
        "attention, fewer heads of keys",
        lambda x, y: F.scaled_dot_product_attention(heads(x), heads(y)[:, :2], heads(x + y)[:, :2], enable_gqa=True),
        27,
    ),
    ("masked scores", lambda x, y: ((x @ y.mT) / 8).masked_fill(~CAUSAL, -math.inf).softmax(-1), 27),
    ("einsum of scores", lambda x, y: torch.einsum("bhid,bhjd->bhij", heads(x), heads(y)), 33),
    ("einsum, moved", lambda x, y: torch.einsum("bnc,bmc->mnb", x, y), 33),
    ("einsum with sum", lambda x, y: torch.einsum("bnc,bmc->bn", x, y), 30),
]


class Many(nn.Module):
    """All functions of some rows at once, so that one export and one compilation serve them all."""

    def __init__(self, rows: Sequence[tuple[str, Any, float]]) -> None:
        super().__init__()
        self.rows = rows

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(function(x, y) for _, function, _ in self.rows)


ALONE = [pytest.param([row], id=row[0], marks=pytest.mark.alone) for row in ROWS]
"""Each function as a program of its own, for whoever looks for what is wrong with one."""


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    random = torch.Generator().manual_seed(3)
    return [(torch.randn(SHAPE, generator=random), torch.randn(SHAPE, generator=random)) for _ in range(count)]


def rewritten(model: nn.Module, *inputs: torch.Tensor) -> Any:
    module = torch.export.export(model.eval(), inputs).module(check_guards=False)
    before = str(module.graph)
    decompose(module, Capabilities())
    assert str(module.graph) != before
    return module


def test_rewrites_keep_the_float_result():
    x, y = batches(1)[0]
    module = rewritten(Many(ROWS), x, y)
    names = {overload_name(n).split(".")[0] for n in module.graph.nodes}
    assert not {n for n in names if n.endswith("norm") or n in ("scaled_dot_product_attention", "einsum")}
    problems = []
    for (name, _, _), new, old in zip(ROWS, module(x, y), Many(ROWS)(x, y), strict=True):
        error = float((new - old).abs().max())
        if new.shape != old.shape or not error <= 2e-5:
            problems.append(f"{name}: {error}")
    assert not problems, problems


@pytest.mark.sweep
@pytest.mark.parametrize("rows", [pytest.param(ROWS, id="all"), *ALONE])
def test_programs_are_close_to_float(rows):
    data = batches(12)
    program = micronpu.compile(Many(rows).eval(), data[0], "imxrt700", calibration=data)
    left = [f"{v.operator}: {[str(r) for r in v.reasons]}" for v in program.report.host]
    assert not left, "\n".join(left)
    assert program.report.partitions == 1
    computed = (program.run, program.quantized, Many(rows))
    results = [tuple(outputs(compute(*batch)) for compute in computed) for batch in data[:4]]
    problems = []
    for i, (name, _, least) in enumerate(rows):
        reached = decibels([(r[i], real[i]) for r, _, real in results])
        eager = decibels([(q[i], real[i]) for _, q, real in results])
        if reached < least or reached < eager - 1:
            problems.append(f"{name}: {reached:.1f} dB, in eager mode {eager:.1f}")
    assert not problems, "\n".join(problems)


LOUD = 25.0
"""Of the scores, whose largest may be a masked one."""
BIAS = torch.linspace(-3, 0, TOKENS * TOKENS).view(TOKENS, TOKENS)

MASKS: list[tuple[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]] = [
    ("filled where a given mask is true", lambda x, m: x.masked_fill(m, -math.inf).softmax(-1)),
    ("filled where a constant mask is true", lambda x, m: x.masked_fill(~CAUSAL, -math.inf).softmax(-1)),
    ("filled where a comparison holds", lambda x, m: x.masked_fill(x < -3.0, -1e9).softmax(-1)),
    ("chosen by a given mask", lambda x, m: torch.where(~m, x, -math.inf).softmax(-1)),
    ("chosen by a constant one", lambda x, m: torch.where(CAUSAL, x, torch.tensor(-math.inf)).softmax(-1)),
    ("with a constant added", lambda x, m: (x + torch.where(CAUSAL, BIAS, torch.tensor(-math.inf))).softmax(-1)),
    ("with a triangle added", lambda x, m: (x + torch.full((TOKENS, TOKENS), -math.inf).triu(1)).softmax(-1)),
    ("with -100 added", lambda x, m: (x + torch.where(CAUSAL, 0.0, -100.0)).softmax(-1)),
    ("with numbers of the mask added", lambda x, m: (x + m.float() * -1e4).softmax(-1)),
    ("causal attention", lambda x, m: attended(x, is_causal=True)),
    ("attention with a given mask", lambda x, m: attended(x, attn_mask=~m)),
    ("attention with a bias", lambda x, m: attended(x, attn_mask=torch.where(CAUSAL, BIAS, torch.tensor(-math.inf)))),
]


def attended(scores: torch.Tensor, **options: Any) -> torch.Tensor:
    """The weights that attention gives to its keys."""
    one = torch.eye(TOKENS)[None]
    return F.scaled_dot_product_attention(scores, one, one, scale=1.0, **options)


class Masked(nn.Module):
    """All ways to hide scores at once."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.attention = nn.MultiheadAttention(TOKENS, 2, batch_first=True)
        self.attention.in_proj_weight.data *= 0.4  # scores of up to 20

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        _, weights = self.attention(x, x, x, key_padding_mask=mask[:, 0], attn_mask=~CAUSAL)
        return (*(function(x, mask) for _, function in MASKS), weights)


def scores(count: int, seed: int, hidden: float) -> list[tuple[torch.Tensor, torch.Tensor]]:
    random = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(count):
        mask = torch.rand(1, TOKENS, TOKENS, generator=random) < hidden
        mask[..., 0] = False
        rows.append((torch.randn(1, TOKENS, TOKENS, generator=random) * LOUD / 3, mask))
    return rows


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("target", "activations", "share"),
    [
        ("imxrt700-neutron", "int8", 0.3),
        ("ethos-u55-128", "int8", 0.0),
        ("ethos-u85-256", "int16", 0.0),
    ],
)
def test_what_is_masked_weighs_nothing(target: str, activations: Any, share: float) -> None:
    """Whatever the scores that are masked, and whether or not calibration has seen a key masked."""
    model = Masked().eval()
    rows = scores(6, 1, share)
    program = micronpu.compile(model, rows[0], target, calibration=rows, quantization=activations)
    agreement = program.report.agreement
    assert agreement is not None and not agreement.reason
    names = [*(name for name, _ in MASKS), "multi-head attention"]
    most = 1 / 256 if activations == "int8" else TOKENS * 2.5 / 2**15  # int16: what LiteRT's table gives exp(-10)
    for x, mask in scores(3, 2, 0.3):
        for name, found, real in zip(names, program.run(x, mask), model(x, mask), strict=True):
            if share == 0.0 and name == "with numbers of the mask added":
                continue  # numbers that calibration has to see
            hidden = real == 0.0
            assert hidden.any(), name
            assert float((found * hidden).sum(-1).max()) <= most, name


def test_a_mask_that_is_not_only_one_keeps_its_numbers() -> None:
    x = scores(1, 3, 0.3)[0]
    module = rewritten(Masked(), *x)
    for (name, _), new, old in zip(MASKS, module(*x), Masked().eval()(*x), strict=False):
        assert torch.allclose(new, old, atol=2e-6), name


class Stays(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.function(x, y) + y.sum() ** 2  # something that is rewritten


def test_a_mask_that_others_than_a_softmax_read_is_left_alone():
    x, y = batches(1)[0]
    module = rewritten(Stays(lambda x, y: x.masked_fill(torch.eye(16, 32) > 0, -math.inf) * y), x, y)
    assert any(overload_name(n).startswith("masked_fill") for n in module.graph.nodes)


class Encoder(nn.Module):
    """A transformer layer with attention of either form that export gives."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 4, 64, batch_first=True, activation="gelu", norm_first=True)
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.layer(x), *self.attention(x, y, y)


def test_modules_of_torch():
    data = batches(12)
    model = Encoder().eval()
    assert all(found >= least for found, least in zip(against_float(model, data), (30, 25, 25), strict=True))
