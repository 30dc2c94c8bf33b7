"""Last stage of the MTCNN face detector: convolutions with PReLU, three max pools in ceil mode, dense layers.

Three outputs: box, five points, probabilities. Rows are the crops that the package's own detector hands to this
network on the photographs; other crops calibrate.
"""

from __future__ import annotations

from pathlib import Path

import torch
from benchmarks.zoo import faces
from benchmarks.zoo.network import Figures, Loaded, Network, Outputs, mean, output, share, split, t32
from torch import Tensor, nn


class ONet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.prelu1 = nn.Conv2d(3, 32, 3), nn.PReLU(32)
        self.pool1 = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.conv2, self.prelu2 = nn.Conv2d(32, 64, 3), nn.PReLU(64)
        self.pool2 = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.conv3, self.prelu3 = nn.Conv2d(64, 64, 3), nn.PReLU(64)
        self.pool3 = nn.MaxPool2d(2, 2, ceil_mode=True)
        self.conv4, self.prelu4 = nn.Conv2d(64, 128, 2), nn.PReLU(128)
        self.dense5, self.prelu5 = nn.Linear(1152, 256), nn.PReLU(256)
        self.dense6_1, self.dense6_2, self.dense6_3 = nn.Linear(256, 2), nn.Linear(256, 4), nn.Linear(256, 10)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.pool1(self.prelu1(self.conv1(x)))
        x = self.pool2(self.prelu2(self.conv2(x)))
        x = self.pool3(self.prelu3(self.conv3(x)))
        x = self.prelu4(self.conv4(x))
        x = self.prelu5(self.dense5(x.permute(0, 3, 2, 1).reshape(x.shape[0], -1)))
        return self.dense6_2(x), self.dense6_3(x), self.dense6_1(x).softmax(1)


def task(r: Outputs, g: Outputs) -> Figures:
    a, b = output(r, 2)[:, 1] > 0.7, output(g, 2)[:, 1] > 0.7
    box, points = ((output(r, k) - output(g, k))[a].abs() for k in (0, 1))
    return {
        "crops": len(a),
        "faces": int(a.sum()),
        "decisions_equal": share(a == b),
        "box_error_percent": mean(100 * box, 2),
        "point_error_px_of_48": mean(48 * points, 3),
    }


def load(path: Path) -> Loaded:
    model = ONet()
    model.load_state_dict(torch.load(path))
    rows = [(t32(a)[None],) for a in faces.seen_by("onet")]
    return Loaded(model.eval(), *split(rows, 100, 200), task)


NETWORK = Network(
    does="Is this crop a face, and where are its eyes? MTCNN's last stage, 0.4 M parameters",
    package="facenet-pytorch",
    file="facenet_pytorch/data/onet.pt",
    data=faces.PACKAGES,
    metric="decisions_equal",
    measures="decisions as in float",
    load=load,
)
