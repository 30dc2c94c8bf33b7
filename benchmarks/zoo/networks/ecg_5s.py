"""Quality of five seconds of an electrocardiogram: three convolutions over time with LeakyReLU, four dense layers.

Rows are windows of one recording of five minutes, three in four with added noise, drift or mains hum; other windows
calibrate. Float accepts all of them, so that the order of the scores is judged.
"""

from __future__ import annotations

from pathlib import Path

import torch.nn.functional as F
from benchmarks.zoo import data
from benchmarks.zoo.network import Loaded, Network, split, t32
from benchmarks.zoo.networks import ecg
from benchmarks.zoo.weights import Weights, batch_norm, keras, linear
from torch import Tensor, nn


class Ecg5s(nn.Module):
    def __init__(self, w: Weights) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for k in (29, 30, 31):
            kernel = w[f"conv1d_{k}/kernel"]
            conv = nn.Conv1d(*kernel.shape[1:], kernel.shape[0])
            conv.weight.data, conv.bias.data = t32(kernel.transpose(2, 1, 0)), t32(w[f"conv1d_{k}/bias"])
            norm = batch_norm(w, f"batch_normalization_{k}", nn.BatchNorm1d(50, eps=1e-3))
            layers += [conv, norm, nn.LeakyReLU(0.3)]
        self.cnn = nn.Sequential(*layers, nn.MaxPool1d(7))
        self.dense = nn.ModuleList(linear(w[f"dense_{k}/kernel"], w[f"dense_{k}/bias"]) for k in range(19, 23))

    def forward(self, x: Tensor) -> Tensor:
        x = self.cnn(x).permute(0, 2, 1).flatten(1)
        for dense in self.dense[:-1]:
            x = F.leaky_relu(dense(x), 0.3)
        return self.dense[-1](x).sigmoid()


def load(path: Path) -> Loaded:
    rows = [(t32(y)[None, None],) for y in data.heart_beats(1250)]
    return Loaded(Ecg5s(keras(path)).eval(), *split(rows, 80, 100), ecg.task)


NETWORK = Network(
    does="Are these five seconds of an electrocardiogram good enough to read? 1.9 M parameters",
    package="ecg-quality",
    file="ecg_quality/models/CNN5s.h5",
    data=(data.HEART,),
    metric="rank_correlation",
    measures="rank correlation with float's scores",
    load=load,
)
