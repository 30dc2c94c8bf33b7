"""What does a line of print say? PP-OCRv4: a convolutional backbone, two transformer blocks, 6,625 characters in 32
places.

Rows are two words printed in many fonts over photographs; other lines calibrate. All characters of a line have to be
float's: a harsh metric, beside which `characters_right` uses the true texts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.zoo import data
from benchmarks.zoo.network import Figures, Loaded, Network, Outputs, t32


def distance(a: str, b: str) -> int:
    """Characters to insert, delete or replace."""
    d = list(range(len(b) + 1))
    for i, x in enumerate(a):
        d, before = [i + 1], d
        for j, z in enumerate(b):
            d.append(min(before[j] + (x != z), before[j + 1] + 1, d[j] + 1))
    return d[-1]


def load(path: Path) -> Loaded:
    import onnx

    characters = next(p.value for p in onnx.load(path).metadata_props if p.key == "character").split("\n")
    characters = ["", *characters, " "]
    lines = data.text_lines(90, 256, seed=7)
    rows, truth = [(t32(im.transpose(2, 0, 1))[None],) for im, _ in lines], [s for _, s in lines[40:]]

    def read(y: Any) -> str:
        k = y[0].argmax(-1).tolist()
        return "".join(characters[c] for before, c in zip([0, *k[:-1]], k, strict=True) if c and c != before)

    def task(r: Outputs, g: Outputs) -> Figures:
        a, b = ([read(x[0]) for x in y] for y in (r, g))
        wrong = sum(map(distance, truth, b))
        return {
            "lines": len(a),
            "same_text": round(sum(x == z for x, z in zip(a, b, strict=True)) / len(a), 4),
            "characters_right": round(1 - wrong / sum(map(len, truth)), 4),
        }

    return Loaded(None, rows[:40], rows[40:], task)


NETWORK = Network(
    does="What does this line of print say? PP-OCRv4, 2.7 M parameters",
    package="rapidocr-onnxruntime",
    file="rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
    data=data.PRINT,
    metric="same_text",
    measures="lines whose text is float's",
    load=load,
)
