"""A detector of one scale for pictures of 96x96: FOMO's grid of 12x12 cells, with a box in each cell."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

CLASSES = ("trouser", "bag", "boot")
SIZE, CELL = 96, 8


def block(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    """A separable convolution."""
    depthwise = nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False)
    pointwise = nn.Conv2d(inputs, outputs, 1, bias=False)
    return nn.Sequential(depthwise, nn.BatchNorm2d(inputs), nn.ReLU6(), pointwise, nn.BatchNorm2d(outputs), nn.ReLU6())


class Detector(nn.Module):
    """x [N, 1, 96, 96], grey from 0 to 1  ->  scores [N, 3, 12, 12] from 0 to 1, distances [N, 4, 12, 12] in cells.

    The distances are those of the left, upper, right and lower side from the centre of the cell.
    """

    def __init__(self) -> None:
        super().__init__()
        stem = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6())
        self.body = nn.Sequential(stem, block(16, 32, 2), block(32, 48, 2), block(48, 48), block(48, 64), block(64, 64))
        self.scores = nn.Conv2d(64, len(CLASSES), 1)
        self.distances = nn.Sequential(nn.Conv2d(64, 4, 1), nn.ReLU())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.body(x)
        return self.scores(y).sigmoid(), self.distances(y)


def load() -> Detector:
    """The trained detector."""
    model = Detector()
    with np.load(Path(__file__).with_name("weights.npz")) as weights:
        model.load_state_dict({name: torch.from_numpy(weights[name].astype(np.float32)) for name in weights})
    return model.eval()
