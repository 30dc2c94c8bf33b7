"""Emotion of a face of 200 x 200: a MobileNetV2 of an old converter, whose int8 weights bear the type uint8.

LiteRT's kernels read these weights as int8 and quantize activations as they go, 23.7 dB from float and another emotion
in 3 of 100 rows; float is therefore LiteRT with the same weights as floats. Rows are faces found in the photographs,
ten crops of each, in grey; other faces calibrate.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from benchmarks.zoo import faces
from benchmarks.zoo.network import Loaded, Network, Row, every, t32
from benchmarks.zoo.tasks import classes


def rows(found: np.ndarray, n: int) -> list[Row]:
    from PIL import Image

    small = [faces.grey(a).astype(np.uint8) for a in every(list(found.reshape(-1, *found.shape[2:])), n)]
    big = [np.asarray(Image.fromarray(a).resize((200, 200), Image.Resampling.BILINEAR), np.float32) for a in small]
    return [(t32(np.repeat(a[..., None], 3, 2) / 255)[None],) for a in big]


def load(path: Path) -> Loaded:
    x = faces.crops(192)
    return Loaded(None, rows(x[::2], 60), rows(x[1::2], 100), classes)


NETWORK = Network(
    does="Which of seven emotions does this face show? MobileNetV2, 2.5 M parameters",
    package="facex",
    file="facex/assets/model_optimized.tflite",
    data=faces.PACKAGES,
    metric="same_class",
    measures="same emotion as in float",
    load=load,
)
