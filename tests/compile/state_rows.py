"""Small models that keep a state from one call to the next, one for each way in which people write it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tests.compile.small import Small, conv, linear
from torch import nn


class Keeps(Small):
    """A `Small` with buffers."""

    def __init__(self, function: Callable[..., Any], buffers: dict[str, torch.Tensor], **modules: nn.Module) -> None:
        super().__init__(function, **modules)
        for name, value in buffers.items():
            self.register_buffer(name, value.clone())


class Inner(nn.Module):
    """Assigns its own buffer, which torch.export does not see in an inner module."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.full((1, 8), 0.25))
        self.layer = linear()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.h = torch.sigmoid(self.layer(self.h) + x)
        return self.h


def _roll(self: Any, x: torch.Tensor) -> Any:
    self.ring.copy_(torch.cat([torch.roll(self.ring, -1, 2)[:, :, :-1], x[:, :, None]], 2))
    return self.layer(self.ring.mean(2))


def _slices(self: Any, x: torch.Tensor) -> Any:
    self.ring[:, :, :-1] = self.ring[:, :, 1:].clone()
    self.ring[:, :, -1] = x
    return self.layer(self.ring.mean(2))


def _strided(self: Any, x: torch.Tensor) -> Any:
    self.ring[:, :, ::3] = x[:, :, None] * torch.ones(1, 1, 2)
    return self.layer(self.ring.mean(2))


def _cache(self: Any, x: torch.Tensor) -> Any:
    self.cache.index_copy_(1, self.place, x[:, None])
    self.place.copy_((self.place + 1) % 6)
    return self.layer(self.cache).mean(1)


def _lstm(self: Any, x: torch.Tensor) -> Any:
    h, c = self.cell(x, (self.h, self.c))
    self.h.copy_(h)
    self.c.copy_(c)
    return self.layer(h)


def _cell(self: Any, x: torch.Tensor) -> Any:
    self.h = self.cell(x, self.h)
    return self.layer(self.h)


def _shift(self: Any, x: torch.Tensor) -> Any:
    self.b.copy_(self.a)
    self.a.copy_(x)
    return self.layer(self.b) + self.a


def _swap(self: Any, x: torch.Tensor) -> Any:
    old = self.a.clone()
    self.a.copy_(self.b)
    self.b.copy_(old)
    return self.layer(self.b) + x


def _average(self: Any, x: torch.Tensor) -> Any:
    self.mean.mul_(0.9).add_(x, alpha=0.1)
    return x - self.mean


def _delay(self: Any, x: torch.Tensor) -> Any:
    old = self.last.clone()
    self.last.copy_(x * 2 + 1)
    return old


def _frames(self: Any, x: torch.Tensor) -> Any:
    rows = torch.cat([self.rows, x[:, :, None]], 2)
    self.rows.copy_(rows[:, :, 1:])
    return torch.relu(self.conv(rows[:, None])).mean((1, 2))


def _count(self: Any, x: torch.Tensor) -> Any:
    self.calls.add_(1)
    return self.layer(x), self.calls.clone()


def _host(self: Any, x: torch.Tensor) -> Any:
    self.h.copy_(torch.atan2(self.layer(x), self.h + 1))
    return self.h * 2


def zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(shape)


ROWS: dict[str, Callable[[], nn.Module]] = {
    "roll": lambda: Keeps(_roll, {"ring": zeros(1, 8, 6)}, layer=linear()),
    "slices": lambda: Keeps(_slices, {"ring": torch.full((1, 8, 6), 0.5)}, layer=linear()),
    "strided": lambda: Keeps(_strided, {"ring": torch.full((1, 8, 6), 0.5)}, layer=linear()),
    "cache": lambda: Keeps(_cache, {"cache": zeros(1, 6, 8), "place": torch.tensor([2])}, layer=linear()),
    "lstm": lambda: Keeps(_lstm, {"h": zeros(1, 8), "c": zeros(1, 8)}, cell=nn.LSTMCell(8, 8), layer=linear()),
    "gru": lambda: Keeps(_cell, {"h": zeros(1, 8)}, cell=nn.GRUCell(8, 8), layer=linear()),
    "rnn": lambda: Keeps(_cell, {"h": zeros(1, 8)}, cell=nn.RNNCell(8, 8), layer=linear()),
    "shift": lambda: Keeps(_shift, {"a": zeros(1, 8), "b": torch.ones(1, 8)}, layer=linear()),
    "swap": lambda: Keeps(_swap, {"a": zeros(1, 8), "b": torch.ones(1, 8)}, layer=linear()),
    "average": lambda: Keeps(_average, {"mean": torch.ones(1, 8)}),
    "delay": lambda: Keeps(_delay, {"last": zeros(1, 8)}),
    "frames": lambda: Keeps(_frames, {"rows": zeros(1, 8, 2)}, conv=conv(1, 4, 3, padding=(1, 0))),
    "count": lambda: Keeps(_count, {"calls": torch.zeros(1, dtype=torch.int32)}, layer=linear()),
    "inner": lambda: Small(lambda self, x: self.inner(x) + 1, inner=Inner()),
    "host": lambda: Keeps(_host, {"h": zeros(1, 8)}, layer=linear()),
}
"""Models of x [1, 8]."""


def sequences(count: int = 3, calls: int = 8) -> list[list[torch.Tensor]]:
    random = torch.Generator().manual_seed(2)
    return [[torch.randn(1, 8, generator=random) for _ in range(calls)] for _ in range(count)]
