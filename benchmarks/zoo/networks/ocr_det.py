"""Which pixels are print? PP-OCRv4's detector at 96 x 256: squeeze and excitation, hard sigmoid, transposed
convolutions.

Rows are two lines of words in many fonts over photographs, one above the other; other lines calibrate.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from benchmarks.zoo import data, tasks
from benchmarks.zoo.network import Loaded, Network, t32


def load(path: Path) -> Loaded:
    lines = [im for im, _ in data.text_lines(160, 256, seed=11)]
    rows = [(t32(np.concatenate(pair).transpose(2, 0, 1))[None],) for pair in zip(lines[::2], lines[1::2], strict=True)]
    return Loaded(None, rows[::2], rows[1::2], tasks.masks)


NETWORK = Network(
    does="Which pixels of this picture are print? PP-OCRv4 detector, 1.2 M parameters",
    package="rapidocr-onnxruntime",
    file="rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
    data=data.PRINT,
    metric="overlap",
    measures="overlap of the masks with float's",
    load=load,
)
