"""The visual wake words network of MLPerf Tiny, trained: MobileNetV1, a quarter as wide."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

HERE = Path(__file__).resolve().parent
SIZE = 96
WIDTHS = (16, 32, 32, 64, 64, 128, 128, 128, 128, 128, 128, 256, 256)


def layer(inputs: int, outputs: int, size: int, stride: int, groups: int = 1) -> list[nn.Module]:
    """Convolution, batch norm and ReLU. A stride of 2 pads as TensorFlow does, below and to the right alone."""
    pad = [nn.ZeroPad2d((0, 1, 0, 1))] if stride == 2 else []
    conv = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2 if stride == 1 else 0, groups=groups)
    return [*pad, conv, nn.BatchNorm2d(outputs, eps=1e-3), nn.ReLU()]


def network() -> nn.Sequential:
    """MobileNetV1, a quarter as wide: [N, 3, 96, 96] from 0 to 1 to the scores of "no person" and "person", [N, 2]."""
    layers, width = layer(3, 8, 3, stride=2), 8
    for number, wider in enumerate(WIDTHS):
        layers += layer(width, width, 3, stride=2 if number in (1, 3, 5, 11) else 1, groups=width)
        layers, width = layers + layer(width, wider, 1, stride=1), wider
    model = nn.Sequential(*layers, nn.AvgPool2d(3), nn.Flatten(), nn.Linear(width, 2))
    with np.load(HERE / "weights.npz") as weights:  # in the order of the layers
        stored = [torch.from_numpy(weights[name].astype(np.float32)) for name in weights.files]
    names = [name for name in model.state_dict() if "num_batches" not in name]
    model.load_state_dict(dict(zip(names, stored, strict=True)), strict=False)
    return model.eval()
