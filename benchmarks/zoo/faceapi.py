"""Blocks of the networks of @vladmandic/face-api, whose weights are TensorFlow.js files."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from benchmarks.zoo.network import t32
from benchmarks.zoo.weights import Weights, conv2d, depthwise
from torch import Tensor, nn

FOLDER = "package/model"


def normalized(picture: np.ndarray) -> np.ndarray:
    """A crop of a face, 0 to 255 [size, size, 3], as the networks of faces read it: [3, size, size]."""
    return ((picture - np.array([122.782, 117.001, 104.298])) / 255).transpose(2, 0, 1)


class Separable(nn.Module):
    """A depthwise and a pointwise convolution in TensorFlow's SAME padding of an even size."""

    def __init__(self, w: Weights, name: str, stride: int = 1) -> None:
        super().__init__()
        self.a = depthwise(w[f"{name}/depthwise_filter"], stride, padding=0 if stride > 1 else 1)
        self.b = conv2d(w[f"{name}/pointwise_filter"], w[f"{name}/bias"])
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(F.pad(x, (0, 1, 0, 1)) if self.stride > 1 else x))


class Dense(nn.Module):
    """Three or four convolutions, each of which reads the sum of those before."""

    def __init__(self, w: Weights, name: str, convolutions: int) -> None:
        super().__init__()
        self.first: nn.Module
        if f"{name}/conv0/filters" in w:
            conv = conv2d(w[f"{name}/conv0/filters"], w[f"{name}/conv0/bias"], 2)
            self.first = nn.Sequential(nn.ZeroPad2d((0, 1, 0, 1)), conv)
        else:
            self.first = Separable(w, f"{name}/conv0", 2)
        self.others = nn.ModuleList(Separable(w, f"{name}/conv{k}") for k in range(1, convolutions))

    def forward(self, x: Tensor) -> Tensor:
        total = torch.relu(self.first(x))
        for conv in self.others:
            total = total + conv(torch.relu(total))
        return torch.relu(total)


class Extractor(nn.Module):
    """Dense blocks over a face of 112 x 112, a mean, and a fully connected layer."""

    def __init__(self, w: Weights, blocks: int, convolutions: int, softmax: bool) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Dense(w, f"dense{k}", convolutions) for k in range(blocks)))
        self.last = nn.Linear(*w["fc/weights"].shape)
        self.last.weight.data, self.last.bias.data = t32(w["fc/weights"].T), t32(w["fc/bias"])
        self.softmax = softmax

    def forward(self, x: Tensor) -> Tensor:
        y = self.last(self.blocks(x).mean((2, 3)))
        return y.softmax(-1) if self.softmax else y
