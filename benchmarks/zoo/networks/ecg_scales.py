"""Quality of two seconds of an electrocardiogram: an omni-scale network, 31 convolutions beside one another, 1 to 113
wide.

Rows are windows of one recording of five minutes, three in four with added noise, drift or mains hum; other windows
calibrate.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from benchmarks.zoo import data
from benchmarks.zoo.network import Loaded, Network, split, t32
from benchmarks.zoo.networks import ecg
from benchmarks.zoo.weights import Weights, batch_norm, keras, linear
from torch import Tensor, nn

STAGES = (range(31), range(31, 62), range(62, 64))


class Stage(nn.Module):
    def __init__(self, w: Weights, numbers: range, name: str) -> None:
        super().__init__()
        self.convs = nn.ModuleList()
        for k in numbers:
            n = f"conv1d_{k}" if k else "conv1d"
            kernel = w[f"{n}/kernel"]
            conv = nn.Conv1d(*kernel.shape[1:], kernel.shape[0])
            conv.weight.data, conv.bias.data = t32(kernel.transpose(2, 1, 0)), t32(w[f"{n}/bias"])
            self.convs.append(conv)
        self.norm = batch_norm(w, name, nn.BatchNorm1d(len(numbers), eps=1e-3))

    def forward(self, x: Tensor) -> Tensor:
        widths = [conv.kernel_size[0] - 1 for conv in self.convs]
        padded = [F.pad(x, (n // 2, n - n // 2)) for n in widths]
        return torch.relu(self.norm(torch.cat([conv(p) for conv, p in zip(self.convs, padded, strict=True)], 1)))


class OmniScale(nn.Module):
    def __init__(self, w: Weights) -> None:
        super().__init__()
        names = ("batch_normalization", "batch_normalization_1", "batch_normalization_2")
        self.stages = nn.Sequential(*(Stage(w, r, n) for r, n in zip(STAGES, names, strict=True)))
        self.last = linear(w["dense/kernel"], w["dense/bias"])

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.stages(x).mean(-1)).sigmoid()


def load(path: Path) -> Loaded:
    rows = [(t32(y)[None, None],) for y in data.heart_beats()]
    return Loaded(OmniScale(keras(path)).eval(), *split(rows, 80, 100), ecg.task)


NETWORK = Network(
    does="Is this piece of an electrocardiogram good enough to read? Omni-scale, 0.1 M parameters",
    package="ecg-quality",
    file="ecg_quality/models/OSCNN2s.h5",
    data=(data.HEART,),
    metric="decisions_equal",
    measures="decisions as in float",
    load=load,
)
