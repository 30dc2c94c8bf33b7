"""Models with many successive operators, and with values that many others read, compile.

A compilation nests some 130 calls. Where Python allows 250, 75 blocks show a recursion that takes two calls a block.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from tests.unit.quantize.test_deep_programs import calls
from torch import nn

import micronpu

BLOCKS, CALLS = 75, 250


class Deep(nn.Module):
    """A linear layer, and blocks of one shape behind it."""

    def __init__(self, shape: str, count: int) -> None:
        super().__init__()
        self.layer, self.other = nn.Linear(4, 4), nn.Linear(4, 4)
        self.blocks, self.count = getattr(self, shape), count
        self.register_buffer("table", torch.eye(4))

    def chain(self, x: torch.Tensor, i: int) -> torch.Tensor:
        return torch.tanh(x) if i % 2 else torch.relu(x + 1)

    def residual(self, x: torch.Tensor, i: int) -> torch.Tensor:
        return x * 0.5 + torch.relu(x) * 0.4

    def clamps(self, x: torch.Tensor, i: int) -> torch.Tensor:
        return x.clamp(-1 - i, 1 + i)

    def pools(self, x: torch.Tensor, i: int) -> torch.Tensor:
        return F.avg_pool1d(x[:, None], 3, 1, 1)[:, 0]

    def moves(self, x: torch.Tensor, i: int) -> torch.Tensor:
        return x.transpose(0, 1).reshape(x.shape)

    def dense(self, x: torch.Tensor, i: int) -> torch.Tensor:
        return torch.cat([torch.relu(x[:, :2]), x[:, -2:] * 0.9], 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x)
        for i in range(self.count):
            x = self.blocks(x, i)
        return self.other(x)


class Layers(nn.Module):
    """A layer with weights in each block of one shape."""

    def __init__(self, shape: str, count: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.shape, self.layers = shape, nn.ModuleList(nn.Linear(4, 4) for _ in range(count))
        for layer in self.layers:
            nn.init.orthogonal_(layer.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = x
        for layer in self.layers:
            y = torch.tanh(layer(x))
            if self.shape == "residual":
                y = x * 0.7 + torch.relu(y) * 0.3
            elif self.shape == "dense":
                y = torch.cat([y[:, :2], x[:, 2:]], 1)
            elif self.shape == "sums":
                y = (before + y) * 0.5
            before, x = x, y
        return x


class Sums(nn.Module):
    """Each sum is of the two before: as many paths as Fibonacci's numbers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = torch.relu(x), torch.tanh(x)
        for _ in range(BLOCKS):
            a, b = b, (a + b) * 0.5
        return b


class Logic(nn.Module):
    """Each truth value is computed from the one before."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = x > 0
        for i in range(BLOCKS):
            mask = ~mask if i % 2 else mask & (x > -i)
        return x.masked_fill(mask, 0.0)


class Constants(nn.Module):
    """Weights are computed from weights, each read twice."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.eye(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight
        for _ in range(BLOCKS):
            weight = (weight + weight.t()) * 0.5
        return x @ weight


class Ifs(nn.Module):
    """One decision after the other."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(8):
            x = torch.cond(x.sum() > 0, lambda x: x * 0.5, lambda x: x + 1, (x,))
        return x


class Nested(nn.Module):
    """A decision in a decision."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.depth = depth

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def inside(depth: int, x: torch.Tensor) -> torch.Tensor:
            if not depth:
                return x + 1
            return torch.cond(x.sum() > depth, lambda x: inside(depth - 1, x), lambda x: x - 1, (x,))

        return inside(self.depth, x)


def compiled(model: nn.Module) -> micronpu.CompiledProgram:
    torch.manual_seed(0)
    rows = [(torch.randn(2, 4),) for _ in range(8)]
    return micronpu.compile(model.eval(), rows[0], "cortex-m55", calibration=rows, verify=False)


@pytest.fixture(scope="module")
def imported() -> None:
    """What a first compilation imports nests calls of its own."""
    compiled(Deep("chain", 2))


@pytest.fixture
def few_calls(imported: None) -> Iterator[None]:
    """Allow few nested calls."""
    frame, depth, before = sys._getframe(), 0, sys.getrecursionlimit()
    while frame.f_back is not None:
        frame, depth = frame.f_back, depth + 1
    sys.setrecursionlimit(depth + CALLS)
    yield
    sys.setrecursionlimit(before)


class Recursive(nn.Module):
    """Two calls a block, where a compilation asks it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def recursion(blocks: int) -> int:
            return blocks and max(recursion(blocks - 1) for _ in range(1))

        return x + recursion(BLOCKS)


def test_a_recursion_is_seen(few_calls: None) -> None:
    with pytest.raises(micronpu.ModelError, match="maximum recursion depth"):
        compiled(Recursive())


@pytest.mark.sweep
@pytest.mark.usefixtures("few_calls")
@pytest.mark.parametrize("shape", ["chain", "residual", "clamps", "pools", "moves", "dense"])
def test_many_blocks(shape: str) -> None:
    assert len(compiled(Deep(shape, BLOCKS)).buffer) > 1000


@pytest.mark.sweep
@pytest.mark.usefixtures("few_calls")
@pytest.mark.parametrize("model", [Sums(), Logic(), Constants(), Ifs()], ids=lambda model: type(model).__name__)
def test_values_that_others_share(model: nn.Module) -> None:
    assert len(compiled(model).buffer) > 1000


LAYERS = ["chain", "residual", "dense", "sums"]


@pytest.mark.sweep
@pytest.mark.parametrize("shape", LAYERS)
def test_work_grows_as_the_model(shape: str, imported: None) -> None:
    small = calls(lambda: compiled(Layers(shape, 25)))
    assert calls(lambda: compiled(Layers(shape, 100))) < 4.5 * small  # 16 where each block asks all others


@pytest.mark.slow
@pytest.mark.parametrize("shape", LAYERS)
def test_thousands_of_blocks(shape: str) -> None:
    assert len(compiled(Layers(shape, 2000)).buffer) > 1_000_000


@pytest.mark.parametrize("depth", [2, 40])
def test_decisions_in_decisions_end_in_a_message(depth: int) -> None:
    with pytest.raises(micronpu.ModelError, match=r"control flow has one level|RecursionError"):
        compiled(Nested(depth))
