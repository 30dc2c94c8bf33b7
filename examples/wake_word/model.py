"""The wake word network of MLPerf Tiny, trained: four separable convolutions over time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

HERE = Path(__file__).resolve().parent
BANDS = 40


class Network(nn.Module):
    """[1, 40, 30, 1], logarithms of the energy in 40 bands from 0 to 1, to scores of "marvin", silence, other."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs, window in ((BANDS, 128, 3), (128, 128, 5), (128, 128, 10), (128, 32, 15)):
            layers.append(nn.Conv2d(inputs, inputs, (window, 1), groups=inputs, bias=False))
            layers += [nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs, eps=1e-3), nn.ReLU()]
        self.body, self.head = nn.Sequential(*layers), nn.Conv2d(32, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def trained() -> nn.Module:
    model = Network()
    with np.load(HERE / "weights.npz") as weights:  # in the order of the layers
        stored = [torch.from_numpy(weights[name].astype(np.float32)) for name in weights.files]
    stored[-2] = stored[-2][:, :, None, None]  # the last layer, as a convolution
    names = [name for name in model.state_dict() if "num_batches" not in name]
    model.load_state_dict(dict(zip(names, stored, strict=True)), strict=False)
    return model.eval()
