"""Leaves on soil, drawn, each with the mask of what is leaf."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFilter
from torch import Tensor

SIZE = 64


def scenes(count: int, random: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Pictures [count, 3, 64, 64] from 0 to 1, and where the leaf is: [count, 1, 64, 64], 0 or 1."""
    pictures, masks = [], []
    for _ in range(count):
        soil = random.normal((95, 70, 50), 22, (SIZE, SIZE, 3)).clip(0, 255).astype(np.uint8)
        image, mask = Image.fromarray(soil).filter(ImageFilter.GaussianBlur(1.2)), Image.new("L", (SIZE, SIZE))
        for _ in range(random.integers(2, 6)):  # stones
            x, y, size = *random.integers(0, SIZE, 2), random.integers(3, 9)
            grey = int(random.integers(90, 170))
            ImageDraw.Draw(image).ellipse((x - size, y - size, x + size, y + size), (grey, grey, grey - 20))
        middle, turn, (long, wide) = (
            random.uniform(20, 44, 2),
            random.uniform(0, 6.3),
            random.uniform((14, 0.3), (24, 0.6)),
        )
        along = np.linspace(-1, 1, 40)
        side = wide * long * (1 - along**2)
        outline = np.stack([np.r_[along, along[::-1]] * long, np.r_[side, -side[::-1]]], 1)
        axes = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
        leaf, stalk = ((points @ axes + middle) for points in (outline, np.array([[long - 2, 0], [long + 9, 2]])))
        green = tuple(int(v) for v in random.integers((30, 100, 20), (110, 180, 70)))
        for canvas, colour in ((image, green), (mask, 255)):
            ImageDraw.Draw(canvas).polygon([tuple(p) for p in leaf], fill=colour)
            ImageDraw.Draw(canvas).line([tuple(p) for p in stalk], fill=colour, width=3)
        noisy = np.asarray(image) * random.uniform(0.6, 1.3) + random.normal(0, 8, (SIZE, SIZE, 3))
        pictures.append(noisy.clip(0, 255).transpose(2, 0, 1) / 255)
        masks.append(np.asarray(mask)[None] > 127)
    return torch.tensor(np.stack(pictures)).float(), torch.tensor(np.stack(masks)).float()


def overlap(scores: Tensor, truth: Tensor) -> float:
    """Intersection over union of all pictures."""
    marked, leaf = scores > 0, truth > 0.5
    return float((marked & leaf).sum() / (marked | leaf).sum())
