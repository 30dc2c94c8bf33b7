"""A data set that needs no download: ten kinds of things to wear, drawn small, crooked, and with noise."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw

SIZE = 28
# The drawings of each class, as polygons in a square from -1 to 1.
OUTLINES = (
    [
        [(-0.5, -0.8), (0.5, -0.8), (0.9, -0.3), (0.5, -0.1), (0.5, 0.8), (-0.5, 0.8), (-0.5, -0.1), (-0.9, -0.3)]
    ],  # shirt
    [[(-0.5, -0.8), (0.5, -0.8), (0.6, 0.8), (0.1, 0.8), (0.0, -0.2), (-0.1, 0.8), (-0.6, 0.8)]],  # trousers
    [[(-0.4, -0.8), (0.4, -0.8), (0.9, 0.7), (0.6, 0.8), (0.5, 0.1), (0.5, 0.8), (-0.5, 0.8), (-0.9, 0.7)]],  # coat
    [[(-0.3, -0.8), (0.3, -0.8), (0.2, -0.2), (0.6, 0.8), (-0.6, 0.8), (-0.2, -0.2)]],  # dress
    [[(-0.8, -0.4), (-0.3, -0.4), (0.0, 0.1), (0.8, 0.3), (0.8, 0.6), (-0.8, 0.6)]],  # shoe
    [[(-0.6, -0.9), (0.0, -0.9), (0.0, 0.2), (0.8, 0.4), (0.8, 0.8), (-0.6, 0.8)]],  # boot
    [
        [(-0.7, -0.1), (0.7, -0.1), (0.8, 0.8), (-0.8, 0.8)],
        [(-0.4, -0.1), (-0.2, -0.7), (0.2, -0.7), (0.4, -0.1)],
    ],  # bag
    [[(-0.9, 0.3), (0.9, 0.3), (0.9, 0.5), (-0.9, 0.5)], [(-0.5, 0.3), (-0.4, -0.5), (0.4, -0.5), (0.5, 0.3)]],  # hat
    [[(-0.9, 0.5), (0.9, 0.5), (0.8, 0.7), (-0.8, 0.7)], [(-0.2, 0.5), (0.3, -0.1), (0.5, 0.0), (0.1, 0.5)]],  # sandal
    [[(-0.2, -0.8), (0.2, -0.8), (0.1, -0.5), (0.3, 0.5), (0.0, 0.9), (-0.3, 0.5), (-0.1, -0.5)]],  # tie
)


def drawn(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images [count, 28, 28] uint8, and the class of each."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, len(OUTLINES), count)
    images = np.zeros((count, SIZE, SIZE), np.uint8)
    for image, label in zip(images, labels, strict=True):
        turn, scale = random.normal(0, 0.2), random.uniform((6, 6), (13, 13))
        axes = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]]) * scale
        canvas = Image.new("L", (SIZE, SIZE))
        for outline in OUTLINES[label]:
            points = (np.array(outline) + random.normal(0, 0.1, (len(outline), 2))) @ axes + random.normal(14, 1.5, 2)
            ImageDraw.Draw(canvas).polygon([tuple(p) for p in points], fill=int(random.integers(60, 220)))
        image[:] = (np.asarray(canvas) + random.normal(0, 40, (SIZE, SIZE))).clip(0, 255)
    return images, labels
