"""What the networks of this folder are made of: a list, their seeds, and inputs in units of their own."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch
from tests.compile.small import Tensors
from torch import Tensor, nn

NETWORKS: dict[str, type[Idiom]] = {}
"""Every network of this folder, by its name; the modules beside this one fill it."""


class Idiom(nn.Module):
    """A small network as its users write it, with inputs like theirs."""

    def draw(self, random: torch.Generator) -> Tensors:
        """The inputs of one call."""
        raise NotImplementedError


def idiom(kind: type[Idiom]) -> type[Idiom]:
    """Keeps a network under its name."""
    assert kind.__name__ not in NETWORKS, kind
    NETWORKS[kind.__name__] = kind
    return kind


def network(name: str) -> Idiom:
    """The network of a name, whose weights are the same each time."""
    torch.manual_seed(zlib.crc32(name.encode()))
    return NETWORKS[name]().eval()


def noise(random: torch.Generator, *shape: int) -> Tensor:
    """Normally distributed numbers."""
    return torch.randn(*shape, generator=random)


def between(random: torch.Generator, low: float, high: float, *shape: int) -> Tensor:
    """Numbers that are spread evenly."""
    return low + (high - low) * torch.rand(*shape, generator=random)


def sensors(random: torch.Generator, steps: int, sizes: Sequence[float], middles: Sequence[float] = ()) -> Tensor:
    """[1, channels, steps]: slow waves with noise, each channel with a size and a middle of its own."""
    time = torch.arange(steps) / steps
    count = len(sizes)
    pace, phase = between(random, 1.0, 6.0, count, 1), between(random, 0.0, 6.3, count, 1)
    waves = torch.sin(6.2832 * pace * time + phase) * between(random, 0.3, 1.0, count, 1)
    waves = waves + 0.1 * noise(random, count, steps)
    return (waves * torch.tensor(sizes)[:, None] + torch.tensor(middles or [0.0] * count)[:, None])[None]


def picture(random: torch.Generator, channels: int, height: int, width: int) -> Tensor:
    """[1, channels, height, width] in 0..1: a slope, a blob and noise."""
    rows, columns = torch.linspace(-1, 1, height)[:, None], torch.linspace(-1, 1, width)[None]
    a, b, x, y = between(random, -1.0, 1.0, 4, channels, 1, 1)
    blob = torch.exp(-6 * ((rows - y) ** 2 + (columns - x) ** 2))
    made = 0.4 + 0.2 * a * rows + 0.2 * b * columns + 0.4 * blob + 0.05 * noise(random, channels, height, width)
    return made.clamp(0.0, 1.0)[None]
