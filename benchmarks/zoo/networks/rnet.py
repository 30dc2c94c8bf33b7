"""Second stage of the MTCNN face detector: convolutions with PReLU, two max pools in ceil mode, dense layers.

Two outputs: box and probabilities. Rows are the crops that the package's own detector hands to this network on the
photographs; other crops calibrate.
"""

from __future__ import annotations

from pathlib import Path

import torch
from benchmarks.zoo import faces
from benchmarks.zoo.network import Figures, Loaded, Network, Outputs, mean, output, share, split, t32
from torch import Tensor, nn


class RNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.prelu1 = nn.Conv2d(3, 28, 3), nn.PReLU(28)
        self.conv2, self.prelu2 = nn.Conv2d(28, 48, 3), nn.PReLU(48)
        self.conv3, self.prelu3 = nn.Conv2d(48, 64, 2), nn.PReLU(64)
        self.pool = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.dense4, self.prelu4 = nn.Linear(576, 128), nn.PReLU(128)
        self.dense5_1, self.dense5_2 = nn.Linear(128, 2), nn.Linear(128, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.pool(self.prelu1(self.conv1(x)))
        x = self.pool(self.prelu2(self.conv2(x)))
        x = self.prelu3(self.conv3(x))
        x = self.prelu4(self.dense4(x.permute(0, 3, 2, 1).reshape(x.shape[0], -1)))
        return self.dense5_2(x), self.dense5_1(x).softmax(1)


def task(r: Outputs, g: Outputs) -> Figures:
    a, b = output(r, 1)[:, 1] > 0.7, output(g, 1)[:, 1] > 0.7
    return {
        "crops": len(a),
        "faces": int(a.sum()),
        "decisions_equal": share(a == b),
        "box_error_percent": mean(100 * (output(r) - output(g))[a].abs(), 2),
    }


def load(path: Path) -> Loaded:
    model = RNet()
    model.load_state_dict(torch.load(path))
    rows = [(t32(a)[None],) for a in faces.seen_by("rnet")]
    return Loaded(model.eval(), *split(rows, 100, 200), task)


NETWORK = Network(
    does="Is this crop a face? MTCNN's second stage, 0.1 M parameters",
    package="facenet-pytorch",
    file="facenet_pytorch/data/rnet.pt",
    data=faces.PACKAGES,
    metric="decisions_equal",
    measures="decisions as in float",
    load=load,
)
