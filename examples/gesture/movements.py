"""Movements that are made up, and a picture of them."""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image, ImageDraw
from torch import Tensor

NAMES, STEPS = ("still", "circle", "shake", "swipe"), 32  # 32 samples a second
COLOURS = ("#c62828", "#2e7d32", "#1565c0")  # x, y, z


def movements(count: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Accelerations in units of gravity, [count, 32, 3], and which gesture each is."""

    def between(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(count, 1, generator=random)

    kinds = torch.randint(len(NAMES), (count,), generator=random)
    time, size, phase = torch.linspace(0, 1, STEPS)[None], between(0.5, 1.2), between(0, 6.3)
    turn = 2 * torch.pi * between(1.2, 2.2) * time + phase
    shake = torch.sin(2 * torch.pi * between(4, 7) * time + phase)
    push = (time - between(0.3, 0.7)) / between(0.06, 0.12)  # speeds up, then brakes
    swipe = -push * torch.exp(0.5 - push.square() / 2)
    nothing = torch.zeros_like(shake)
    first = torch.stack([nothing, torch.cos(turn), shake, swipe])[kinds, torch.arange(count)]
    second = torch.stack([nothing, torch.sin(turn), 0.1 * shake, 0.2 * swipe])[kinds, torch.arange(count)]
    body = torch.stack([size * first, size * second, torch.ones_like(first)], 2)
    tilt = torch.linalg.qr(torch.eye(3) + 0.25 * torch.randn(count, 3, 3, generator=random)).Q
    return body @ tilt + 0.05 * torch.randn(body.shape, generator=random), kinds


def draw(rows: Tensor, titles: list[str], path: Path) -> None:
    image = Image.new("RGB", (200 * len(rows), 130), "white")
    pen = ImageDraw.Draw(image)
    for number, (row, title) in enumerate(zip(rows, titles, strict=True)):
        pen.text((200 * number + 8, 4), title, fill="black")
        for axis, colour in enumerate(COLOURS):
            points = [(200 * number + 8 + 6 * step, 75 - 24 * float(row[step, axis])) for step in range(STEPS)]
            pen.line(points, fill=colour, width=2)
    image.save(path)
