"""First stage of the MTCNN face detector: fully convolutional with PReLU and one max pool in ceil mode.

Two outputs: four box offsets and two probabilities for every place. Rows are pieces of 96 x 128 of photographs in
three sizes; other pieces of the same photographs calibrate.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from benchmarks.zoo import data
from benchmarks.zoo.network import Figures, Loaded, Network, Outputs, mean, split, t32
from torch import Tensor, nn


class PNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.prelu1 = nn.Conv2d(3, 10, 3), nn.PReLU(10)
        self.conv2, self.prelu2 = nn.Conv2d(10, 16, 3), nn.PReLU(16)
        self.conv3, self.prelu3 = nn.Conv2d(16, 32, 3), nn.PReLU(32)
        self.conv4_1, self.conv4_2 = nn.Conv2d(32, 2, 1), nn.Conv2d(32, 4, 1)
        self.pool = nn.MaxPool2d(2, 2, ceil_mode=True)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.pool(self.prelu1(self.conv1(x)))
        x = self.prelu3(self.conv3(self.prelu2(self.conv2(x))))
        return self.conv4_2(x), self.conv4_1(x).softmax(1)


def pieces() -> list[tuple[Tensor]]:
    from PIL import Image

    rows = []
    for picture in data.pictures():
        for size in (160, 240, 400):
            im = Image.fromarray(picture)
            im.thumbnail((size, size))
            a = np.asarray(im, np.float32)
            for y in range(0, a.shape[0] - 95, 96):
                for x in range(0, a.shape[1] - 127, 128):
                    rows.append((t32((a[y : y + 96, x : x + 128] - 127.5) / 128).permute(2, 0, 1)[None],))
    return [rows[i] for i in np.random.default_rng(0).permutation(len(rows))]


def task(r: Outputs, g: Outputs) -> Figures:
    a, b = (torch.cat([x[1][:, 1].flatten() for x in y]) > 0.6 for y in (r, g))
    boxes, others = (torch.cat([x[0].permute(0, 2, 3, 1).reshape(-1, 4) for x in y]) for y in (r, g))
    f1 = 2 * (a & b).sum().item() / max(1, (a.sum() + b.sum()).item())
    return {
        "candidates": int(a.sum()),
        "f1_of_candidates": round(f1, 4),
        "box_error_px_of_12": mean(12 * (boxes - others)[a].abs(), 3),
    }


def load(path: Path) -> Loaded:
    model = PNet()
    model.load_state_dict(torch.load(path))
    return Loaded(model.eval(), *split(pieces(), 60, 60), task)


NETWORK = Network(
    does="Where may a face be? MTCNN's first stage, 7 thousand parameters",
    package="facenet-pytorch",
    file="facenet_pytorch/data/pnet.pt",
    data=data.PHOTOGRAPHS,
    metric="f1_of_candidates",
    measures="F1 of the places above 0.6",
    load=load,
)
