"""Is a line of print upright or upside down? PP-OCR's direction classifier, a MobileNetV3: squeeze and excitation,
hard swish.

Rows are words of licence texts printed in many fonts over photographs, every other one turned; other lines calibrate.
"""

from __future__ import annotations

from pathlib import Path

import torch
from benchmarks.zoo import data
from benchmarks.zoo.network import Figures, Loaded, Network, Outputs, output, share, t32


def load(path: Path) -> Loaded:
    rows, labels = [], []
    for k, (im, _) in enumerate(data.text_lines(260, 192)):
        rows.append((t32((im if k % 2 else im[::-1, ::-1]).transpose(2, 0, 1))[None],))
        labels.append(0 if k % 2 else 1)
    label = torch.tensor(labels[60:])

    def task(r: Outputs, g: Outputs) -> Figures:
        a, b = output(r).argmax(1), output(g).argmax(1)
        return {"lines": len(a), "right": share(b == label), "equal_to_float": share(a == b)}

    return Loaded(None, rows[:60], rows[60:], task)


NETWORK = Network(
    does="Is this line of print upside down? MobileNetV3, 0.13 M parameters",
    package="rapidocr-onnxruntime",
    file="rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
    data=data.PRINT,
    metric="right",
    measures="lines judged right",
    load=load,
    labels=True,
)
