"""Networks of any number of layers, with random weights, to see how the time to compile grows."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

Network = tuple[nn.Module, tuple[torch.Tensor, ...]]


class _Blocks(nn.Module):
    """Depthwise and pointwise convolutions with batch norms, as in MobileNetV1."""

    def __init__(self, count: int, channels: int = 16) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for _ in range(count):
            layers += [nn.Conv2d(channels, channels, 3, 1, 1, groups=channels), nn.BatchNorm2d(channels), nn.ReLU()]
            layers += [nn.Conv2d(channels, channels, 1), nn.BatchNorm2d(channels), nn.ReLU()]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class _Block(nn.Module):
    """Attention and a feed-forward part, normalised before."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        y = self.before(x)
        q, k, v = (
            layer(y).reshape(batch, tokens, self.heads, width // self.heads).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        seen = (q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5).softmax(-1)
        x = x + self.out((seen @ v).transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(F.gelu(self.up(self.between(x))))


class _Transformer(nn.Module):
    """Attention of all tokens to all."""

    def __init__(self, count: int, width: int = 32) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(_Block(width, 2) for _ in range(count)))
        self.out = nn.Linear(width, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.blocks(x).mean(1))


class _Windows(nn.Module):
    """Attention within windows, which every second block shifts."""

    def __init__(self, count: int, width: int = 16, window: int = 4) -> None:
        super().__init__()
        self.window, self.blocks = window, nn.ModuleList(_Block(width, 2) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, height, width, channels = x.shape
        size = self.window
        for number, block in enumerate(self.blocks):
            shift = size // 2 * (number % 2)
            x = torch.roll(x, (-shift, -shift), (1, 2)) if shift else x
            parts = x.reshape(batch, height // size, size, width // size, size, channels).permute(0, 1, 3, 2, 4, 5)
            y = block(parts.reshape(-1, size * size, channels))
            parts = y.reshape(batch, height // size, width // size, size, size, channels).permute(0, 1, 3, 2, 4, 5)
            x = parts.reshape(batch, height, width, channels)
            x = torch.roll(x, (shift, shift), (1, 2)) if shift else x
        return x.mean((1, 2))


class _Cells(nn.Module):
    """Steps of a recurrent cell, written one after the other."""

    def __init__(self, steps: int, width: int = 16) -> None:
        super().__init__()
        self.steps, self.cell, self.out = steps, nn.GRUCell(width, width), nn.Linear(width, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = x[:, 0] * 0.0
        for step in range(self.steps):
            state = self.cell(x[:, step], state)
        return self.out(state)


NETWORKS: dict[str, Callable[[int], Network]] = {
    "convolutions": lambda n: (_Blocks(n), (torch.randn(1, 16, 8, 8),)),
    "transformer": lambda n: (_Transformer(n), (torch.randn(1, 16, 32),)),
    "window attention": lambda n: (_Windows(n), (torch.randn(1, 8, 8, 16),)),
    "GRU cells": lambda n: (_Cells(n), (torch.randn(1, n, 16),)),
}
"""By name what makes a network of a number of blocks, and its example inputs."""


def grown(name: str, blocks: int) -> Network:
    """A network in evaluation mode, the same each time."""
    torch.manual_seed(0)
    module, examples = NETWORKS[name](blocks)
    return module.eval(), examples
