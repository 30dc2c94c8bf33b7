"""A YOLOv8n of 18 classes (parts of people) at 160 x 160: boxes in pixels and scores in one output, 22 x 525.

Rows are random squares of seven photographs of people; other squares of the same photographs calibrate. A box counts
with a score above 0.25, the same class and an overlap above 0.5 with float's.
"""

from __future__ import annotations

from pathlib import Path

import torch
from benchmarks.zoo import data
from benchmarks.zoo.network import Figures, Loaded, Network, Outputs, t32
from torch import Tensor

Box = tuple[Tensor, float, int]


def iou(a: Tensor, b: Tensor) -> float:
    """Overlap of two boxes of corners."""
    i = (torch.minimum(a[2:], b[2:]) - torch.maximum(a[:2], b[:2])).clamp_min(0).prod()
    return float(i / ((a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod() - i + 1e-9))


def boxes(y: Tensor) -> list[Box]:
    """Corners, score and class of boxes, without those that overlap a better one of their class."""
    y = y[0].T
    s, c = y[:, 4:].max(1)
    k = s > 0.25
    b, s, c = y[k, :4], s[k], c[k]
    corners = torch.cat([b[:, :2] - b[:, 2:] / 2, b[:, :2] + b[:, 2:] / 2], 1)
    out: list[Box] = []
    for i in s.argsort(descending=True).tolist():
        if all(iou(corners[i], q[0]) < 0.45 or q[2] != c[i] for q in out):
            out.append((corners[i], s[i].item(), int(c[i])))
    return out


def task(r: Outputs, g: Outputs) -> Figures:
    n = m = 0
    overlaps: list[float] = []
    for x, z in zip(r, g, strict=True):
        a, b = boxes(x[0]), boxes(z[0])
        n, m = n + len(a), m + len(b)
        best = [max((iou(p[0], q[0]) for q in b if q[2] == p[2]), default=0) for p in a]
        overlaps += [v for v in best if v > 0.5]
    return {
        "boxes_float": n,
        "boxes": m,
        "f1_of_boxes": round(2 * len(overlaps) / max(1, n + m), 4),
        "iou": round(sum(overlaps) / max(1, len(overlaps)), 4),
    }


def load(path: Path) -> Loaded:
    rows = [(t32(a.transpose(2, 0, 1) / 255)[None],) for a in data.squares(160, 90, 6, 7, 0.5)]
    return Loaded(None, rows[::2][:40], rows[1::2][:40], task)


NETWORK = Network(
    does="Where are which parts of people? YOLOv8n, 3.0 M parameters",
    package="nudenet",
    file="nudenet/320n.onnx",
    data=data.PHOTOGRAPHS,
    metric="f1_of_boxes",
    measures="F1 of the boxes beside float's",
    load=load,
    licence="MIT; the file itself says AGPL-3.0",
)
