"""Face detector of 224 x 224 (a small YOLOv2): separable convolutions with LeakyReLU and max pools, 7 x 7 cells of 5
boxes.

Weights of eight bits, rebuilt from TensorFlow.js. Rows are random squares of the photographs, lighter and darker;
squares of other photographs calibrate. A cell's box counts with a logit above 0.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch.nn.functional as F
from benchmarks.zoo import data, faceapi
from benchmarks.zoo.network import Figures, Loaded, Network, Outputs, output, share, t32
from benchmarks.zoo.weights import Weights, conv2d, tensorflow_js
from torch import Tensor, nn


class TinyFace(nn.Module):
    def __init__(self, w: Weights) -> None:
        super().__init__()
        self.first = conv2d(w["conv0/filters"], w["conv0/bias"])
        self.middle = nn.ModuleList(faceapi.Separable(w, f"conv{k}") for k in range(1, 6))
        self.last = conv2d(w["conv8/filters"], w["conv8/bias"])

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.leaky_relu(self.first(x), 0.1), 2, 2)
        for k, conv in enumerate(self.middle):
            x = F.leaky_relu(conv(x), 0.1)
            if k < 4:
                x = F.max_pool2d(x, 2, 2, ceil_mode=True)
        # TensorFlow's SAME padding of a window of 2 with stride 1: the last row and column are maxima of fewer values.
        return self.last(F.max_pool2d(F.pad(x, (0, 1, 0, 1), mode="replicate"), 2, 1))


def task(r: Outputs, g: Outputs) -> Figures:
    a, b = (output(y).unflatten(1, (5, 5))[:, :, 4].flatten(1) for y in (r, g))
    both, total = ((a > 0) & (b > 0)).sum().item(), ((a > 0).sum() + (b > 0).sum()).item()
    return {
        "pictures": len(a),
        "found": int((a.amax(1) > 0).sum()),
        "decisions_equal": share((a.amax(1) > 0) == (b.amax(1) > 0)),
        "f1_of_boxes": round(2 * both / max(1, total), 4),
    }


def load(path: Path) -> Loaded:
    mean_rgb = np.array([117.001, 114.697, 97.404])
    pieces = data.squares(224, 120, 8, 14, 0.45, light=True)
    rows = [(t32(((a - mean_rgb) / 255).transpose(2, 0, 1))[None],) for a in pieces]
    return Loaded(TinyFace(tensorflow_js(path)).eval(), rows[::2], rows[1::2], task)


NETWORK = Network(
    does="Is there a face in this picture of 224 x 224? face-api's tiny detector, 0.2 M parameters",
    package="@vladmandic/face-api",
    file=f"{faceapi.FOLDER}/tiny_face_detector_model-weights_manifest.json",
    data=data.PHOTOGRAPHS,
    metric="decisions_equal",
    measures="decisions as in float",
    load=load,
)
