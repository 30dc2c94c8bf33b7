"""Steps of a language model, written as people write them: what is left to the host, and that they count right."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import micronpu
from micronpu.base.errors import ModelError
from micronpu.runtime import ArrayProgram, RunOptions

VOCAB, DIM, HEADS, GROUPS, LENGTH = 24, 16, 4, 2, 16
EACH = DIM // HEADS


def halves(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def pairs(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)


class Step(nn.Module):
    """One layer with a cache; each way to write it is a name."""

    def __init__(self, *forms: str) -> None:
        super().__init__()
        self.forms = forms
        self.embedding = nn.Embedding(VOCAB, DIM)
        self.q, self.o = nn.Linear(DIM, DIM, bias=False), nn.Linear(DIM, DIM, bias=False)
        self.k, self.v = (nn.Linear(DIM, GROUPS * EACH, bias=False) for _ in range(2))
        rate = 1.0 / 100 ** (torch.arange(0, EACH, 2).float() / EACH)
        angle = torch.outer(torch.arange(LENGTH).float(), rate)
        self.register_buffer("rate", rate)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())
        self.register_buffer("mask", torch.full((LENGTH, LENGTH), -20.0).triu(1))
        shape = (1, LENGTH, GROUPS * EACH) if "rows" in forms else (1, GROUPS, LENGTH, EACH)
        self.register_buffer("keys", torch.zeros(shape))
        self.register_buffer("values", torch.zeros(shape))
        if "counts" in forms:
            self.register_buffer("count", torch.zeros(1, dtype=torch.int64))

    def tables(self, pos: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if "angles" in self.forms:  # as Hugging Face's rotary embedding
            angle = (self.rate[:, None] @ pos.float()[None]).transpose(0, 1)
            return angle.cos(), angle.sin()
        if "select" in self.forms:
            return torch.index_select(self.cos, 0, pos), torch.index_select(self.sin, 0, pos)
        return self.cos[pos], self.sin[pos]

    def masked(self, scores: torch.Tensor, pos: torch.Tensor) -> torch.Tensor:
        if "compare" in self.forms:
            return torch.where(torch.arange(LENGTH) <= pos[:, None], scores, -math.inf)
        if "window" in self.forms:  # of the last five
            place = torch.arange(LENGTH)
            shown = (place <= pos[:, None]) & (place > pos[:, None] - 5)
            return scores.masked_fill(~shown, torch.finfo(torch.float32).min)
        if "slope" in self.forms:  # ALiBi
            slopes = torch.tensor([0.5**i for i in range(HEADS)])[:, None, None]
            scores = scores - slopes * (pos[:, None] - torch.arange(LENGTH)).abs()
        return scores + self.mask[pos]

    def keep(self, cache: torch.Tensor, new: torch.Tensor, pos: torch.Tensor) -> torch.Tensor:
        if "rows" in self.forms:
            cache[:, pos] = new.transpose(1, 2).reshape(1, new.shape[2], -1)
            return cache.view(1, LENGTH, GROUPS, EACH).transpose(1, 2)
        if "setitem" in self.forms:
            cache[:, :, pos] = new
        else:
            cache.index_copy_(2, pos, new)
        return cache

    def forward(self, tokens: torch.Tensor, pos: torch.Tensor) -> torch.Tensor:
        if "counts" in self.forms:
            pos = torch.arange(tokens.shape[1]) + self.count
            self.count.add_(tokens.shape[1])
        x = self.embedding(tokens)
        n = x.shape[1]
        rotate = pairs if "pairs" in self.forms else halves
        cos, sin = self.tables(pos)
        q, k, v = (f(x).view(1, n, -1, EACH).transpose(1, 2) for f in (self.q, self.k, self.v))
        k, v = self.keep(self.keys, rotate(k, cos, sin), pos), self.keep(self.values, v, pos)
        q = rotate(q, cos, sin)
        if "expand" in self.forms:
            k, v = (
                t[:, :, None].expand(1, GROUPS, HEADS // GROUPS, LENGTH, EACH).reshape(1, HEADS, LENGTH, EACH)
                for t in (k, v)
            )
        elif "sdpa" not in self.forms:
            k, v = (t.repeat_interleave(HEADS // GROUPS, 1) for t in (k, v))
        if "sdpa" in self.forms:
            shown = torch.arange(LENGTH) <= pos[:, None]
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=shown, enable_gqa=True)
        else:
            y = torch.softmax(self.masked(q @ k.transpose(-1, -2) / math.sqrt(EACH), pos), -1) @ v
        y = x + self.o(y.transpose(1, 2).reshape(1, n, DIM))
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)
        return F.linear(y, self.embedding.weight)


def calls(n: int, seed: int, kind: torch.dtype = torch.int64) -> list[tuple[torch.Tensor, torch.Tensor]]:
    tokens = torch.randint(0, VOCAB, (LENGTH,), generator=torch.Generator().manual_seed(seed)).to(kind)
    return [(tokens[None, i : i + n], torch.arange(i, i + n).to(kind)) for i in range(0, LENGTH, n)]


FORMS: dict[str, tuple[str, ...]] = {
    "naive": (),
    "selected, pairs, expanded": ("select", "pairs", "expand"),
    "rows": ("rows",),
    "set": ("setitem", "compare"),
    "angles": ("angles", "window"),
    "slopes": ("slope",),
    "sdpa": ("sdpa", "angles"),
}


def check(program: Any, model: nn.Module, n: int) -> None:
    """A sequence of the program against the float model."""
    exact = copy.deepcopy(model)
    program.reset()
    with torch.no_grad():
        for row in calls(n, 99):
            wanted, got = exact(*row), program.run(*row)
            assert (wanted - got).abs().max() < 0.02 * wanted.abs().max(), row[1]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("forms", "n"),
    [
        *((form, 1) for form in FORMS),
        ("naive", 4),
        *(pytest.param(w, 4, marks=pytest.mark.slow) for w in ("set", "angles")),
    ],
    ids=lambda v: str(v),
)
def test_only_casts_are_left_to_the_host(forms: str, n: int) -> None:
    torch.manual_seed(0)
    model = Step(*FORMS[forms]).eval()
    program = micronpu.compile(
        model,
        calls(n, 0)[0],
        "ethos-u85-256",
        calibration=[calls(n, seed) for seed in range(6)],
        quantization="int16",
    )
    assert {v.operator for v in program.report.host} <= {"to.dtype"} and len(program.report.host) <= 2
    assert program.report.partitions == 1
    check(program, model, n)


def test_positions_that_are_not_there_are_refused() -> None:
    torch.manual_seed(0)
    model = Step("setitem").eval()
    program = micronpu.compile(model, calls(1, 0)[0], "ethos-u85-256", calibration=[calls(1, 0)], verify=False)
    tokens, pos = calls(1, 0)[-1]
    program.run(tokens, pos)
    for wrong, words in (
        ((tokens, pos + 1), f"Input 1 of the program has {LENGTH}, and is a number from 0 to {LENGTH - 1}"),
        ((tokens, pos - LENGTH), "Input 1 of the program has -1"),
        ((tokens + VOCAB, pos), f"Input 0 .* a number from 0 to {VOCAB - 1}"),
    ):
        with pytest.raises(ModelError, match=words):
            program.run(*wrong)
        with pytest.raises(ModelError, match=words):
            ArrayProgram(program.buffer).run_arrays(*(t.numpy() for t in wrong))


@pytest.mark.sweep
def test_positions_that_the_model_counts_itself() -> None:
    torch.manual_seed(0)
    model = Step("counts", "compare").eval()
    program = micronpu.compile(
        model,
        calls(1, 0)[0],
        "ethos-u85-256",
        calibration=[calls(1, seed) for seed in range(6)],
        quantization="int16",
    )
    host = [v.operator for v in program.report.host]
    assert set(host) <= {"to.dtype", "add.Tensor"} and len(host) <= 5, host
    check(program, model, 1)
    tokens = calls(1, 99)[0]
    words = f"The sequence is longer than the program has room for: `count` is at {LENGTH}, .* {LENGTH - 1} at most"
    with pytest.raises(ModelError, match=words):  # `check` has filled the cache
        program.run(*tokens)
    program.reset()
    program.run(*tokens)
    with ArrayProgram(program.buffer, RunOptions(isolated=True)) as own:
        for _ in range(LENGTH):
            own.run_arrays(*(t.numpy() for t in tokens))
        with pytest.raises(ModelError, match=words):
            own.run_arrays(*(t.numpy() for t in tokens))


@pytest.mark.sweep
def test_negative_positions_count_from_the_end_where_calibration_has_some() -> None:
    torch.manual_seed(0)
    model = Step("setitem").eval()
    rows = [[(t, p - LENGTH if i % 2 else p) for i, (t, p) in enumerate(calls(1, seed))] for seed in range(3)]
    program = micronpu.compile(model, rows[0][0], "ethos-u85-256", calibration=rows, quantization="int16")
    assert {"lt.Scalar", "where.self"} <= {v.operator for v in program.report.host}
    exact = copy.deepcopy(model)
    program.reset()
    with torch.no_grad():
        for row in rows[1]:
            wanted = exact(*row)
            assert (wanted - program.run(*row)).abs().max() < 0.02 * wanted.abs().max()


def test_queries_of_a_group_lie_side_by_side() -> None:
    """The product reads each key once: no copies of the cache are made."""
    torch.manual_seed(0)
    model = Step().eval()
    program = micronpu.compile(model, calls(1, 0)[0], "ethos-u85-256", calibration=[calls(1, 0)], quantization="int16")
    products = [o for o in program.report.operations if o.name == "batch_matmul"]
    assert [o.shape for o in products] == [(GROUPS, HEADS // GROUPS, LENGTH), (GROUPS, HEADS // GROUPS, EACH)]
    assert not [o for o in program.report.operations if o.name == "concat" and math.prod(o.shape) >= LENGTH * DIM]


def test_tables_that_would_be_too_large_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("micronpu.quantize.positions.TABLE_COMPUTED", 10)
    torch.manual_seed(0)
    model = Step("compare").eval()
    program = micronpu.compile(model, calls(1, 0)[0], "ethos-u85-256", calibration=[calls(1, 0)], quantization="int16")
    assert "le.Tensor" in {v.operator for v in program.report.host}
    check(program, model, 1)


class Deep(nn.Module):
    """A model all of whose operators stand on one line of its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Step()

    def forward(self, tokens: torch.Tensor, pos: torch.Tensor) -> torch.Tensor:
        return self.inner(tokens, pos)


@pytest.mark.sweep
def test_methods_share_qparams_of_the_same_operators_alone() -> None:
    """One token and several are written with other operators: which are alike is not told by the line."""
    torch.manual_seed(0)
    model = Deep().eval()
    program = micronpu.compile(
        {"prefill": (model, calls(4, 0)[0]), "decode": (model, calls(1, 0)[0])},
        "ethos-u85-256",
        calibration={name: [calls(n, seed) for seed in range(6)] for name, n in (("prefill", 4), ("decode", 1))},
        quantization="int16",
    )
    exact = copy.deepcopy(model)
    program.reset()
    rows = [("prefill", row) for row in calls(4, 9)[:2]] + [("decode", row) for row in calls(1, 9)[8:]]
    with torch.no_grad():
        for name, row in rows:
            wanted = exact(*row)
            assert (wanted - program.run(*row, method=name)).abs().max() < 0.02 * wanted.abs().max(), (name, row[1])
