"""Quality of two seconds of an electrocardiogram: convolutions over time with batch norm and LeakyReLU.

Rows are windows of one recording of five minutes, three in four with added noise, drift or mains hum; other windows
calibrate. 98 of 100 are good in float, so that the rank correlation says more than the decisions.
"""

from __future__ import annotations

from pathlib import Path

import torch.nn.functional as F
from benchmarks.zoo import data
from benchmarks.zoo.network import Figures, Loaded, Network, Outputs, mean, output, share, split, t32
from benchmarks.zoo.weights import Weights, batch_norm, keras, linear
from torch import Tensor, nn


class Ecg(nn.Module):
    def __init__(self, w: Weights) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 1
        for k in range(6):
            n = f"_{k}" if k else ""
            conv = nn.Conv1d(channels, 10, 5)
            conv.weight.data = t32(w[f"conv1d{n}/kernel"].transpose(2, 1, 0))
            conv.bias.data = t32(w[f"conv1d{n}/bias"])
            norm = batch_norm(w, f"batch_normalization{n}", nn.BatchNorm1d(10, eps=1e-3))
            layers += [conv, norm, nn.LeakyReLU(0.3)] + ([nn.MaxPool1d(7)] if k in (2, 5) else [])
            channels = 10
        self.cnn = nn.Sequential(*layers)
        self.a, self.b = (linear(w[f"{n}/kernel"], w[f"{n}/bias"]) for n in ("dense", "dense_1"))

    def forward(self, x: Tensor) -> Tensor:
        x = self.cnn(x).permute(0, 2, 1).flatten(1)
        return self.b(F.leaky_relu(self.a(x), 0.3)).sigmoid()


def task(r: Outputs, g: Outputs) -> Figures:
    import scipy.stats

    a, b = output(r).flatten(), output(g).flatten()
    return {
        "windows": len(a),
        "good": int((a > 0.5).sum()),
        "decisions_equal": share((a > 0.5) == (b > 0.5)),
        "mean_abs": mean((a - b).abs()),
        "rank_correlation": round(float(scipy.stats.spearmanr(a, b)[0]), 4),
    }


def load(path: Path) -> Loaded:
    rows = [(t32(y)[None, None],) for y in data.heart_beats()]
    return Loaded(Ecg(keras(path)).eval(), *split(rows, 80, 100), task)


NETWORK = Network(
    does="Is this piece of an electrocardiogram good enough to read? 11 thousand parameters",
    package="ecg-quality",
    file="ecg_quality/models/CNN2s.h5",
    data=(data.HEART,),
    metric="decisions_equal",
    measures="decisions as in float",
    load=load,
)
