"""Keyword spotting with a trained network: the DS-CNN of MLPerf Tiny, its weights, and features to try it on.

Input [1, 1, 49, 10] float32: 49 frames of 10 MFCC coefficients, one second of 16 kHz sound.
Output [1, 12]: one score per class, before the softmax.

    micronpu compile examples/keyword_spotting/model.py:dscnn -t imxrt700

The arrays come from `make_data.py`; their origin and licences are in `NOTICE.md`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

HERE = Path(__file__).resolve().parent


class Stem(nn.Module):
    """A 10x4 convolution with stride 2 and TensorFlow's `SAME` padding: 49x10 -> 25x5."""

    def __init__(self, width: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, width, (10, 4), stride=2)
        self.bn = norm(width)

    def forward(self, x: Tensor) -> Tensor:
        # Nine rows and two columns of padding; of the odd number, the larger half is below.
        return F.relu(self.bn(self.conv(F.pad(x, (1, 1, 4, 5)))))


class SeparableBlock(nn.Module):
    """A depthwise 3x3 and a pointwise convolution, each followed by ReLU."""

    def __init__(self, width: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.dw = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.dw_bn = norm(width)
        self.pw = nn.Conv2d(width, width, 1)
        self.pw_bn = norm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.dw_bn(self.dw(x)))
        return F.relu(self.pw_bn(self.pw(x)))


class DSCNN(nn.Module):
    """The depthwise-separable network of MLPerf Tiny's keyword spotting.

    Args:
        norm: makes the normalisation behind each convolution from its number of channels. The default, nothing, is
            the network whose BatchNorms are folded into the convolutions; `nn.Identity` leaves no trace in an export.
    """

    def __init__(self, classes: int = 12, width: int = 64, norm: Callable[[int], nn.Module] = nn.Identity) -> None:
        super().__init__()
        self.stem = Stem(width, norm)
        self.block1 = SeparableBlock(width, norm)
        self.block2 = SeparableBlock(width, norm)
        self.block3 = SeparableBlock(width, norm)
        self.block4 = SeparableBlock(width, norm)
        self.fc = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block4(self.block3(self.block2(self.block1(self.stem(x)))))
        # As trained: the window is 24 rows high, so that the last of the 25 rows is dropped.
        return self.fc(F.avg_pool2d(x, (24, 5)).flatten(1))


def dscnn() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The trained network in eval mode, and example inputs."""
    model = DSCNN()
    with np.load(HERE / "weights.npz") as weights:
        model.load_state_dict({name: torch.from_numpy(weights[name]) for name in weights.files})
    return model.eval(), calibration()[0]


def calibration() -> list[tuple[Tensor, ...]]:
    """100 batches of one clip each, five to thirteen of every class; none of them is in `test_rows`."""
    with np.load(HERE / "features.npz") as features:
        x = torch.from_numpy(features["calibration_x"])[:, None]
    return [(row,) for row in x.split(1)]


def test_rows() -> tuple[Tensor, Tensor, list[str]]:
    """300 clips, 25 of every class: inputs [300, 1, 49, 10], class numbers [300], and the names of the classes."""
    with np.load(HERE / "features.npz") as features:
        x = torch.from_numpy(features["test_x"])[:, None]
        y = torch.from_numpy(features["test_y"].astype(np.int64))
        return x, y, [str(name) for name in features["classes"]]
