"""MediaPipe's face detector for full range: a feature pyramid, weights in float16, most of them sparse.

Rows are random squares of the photographs, lighter and darker; squares of other photographs calibrate.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.zoo import data, tasks
from benchmarks.zoo.network import Loaded, Network


def load(path: Path) -> Loaded:
    return tasks.squares(192, -1, 1)(path, tasks.detections(192))


NETWORK = Network(
    does="Is there a face in this picture of 192 x 192? BlazeFace for full range, sparse weights",
    package="mediapipe",
    file="mediapipe/modules/face_detection/face_detection_full_range_sparse.tflite",
    data=data.PHOTOGRAPHS,
    metric="decisions_equal",
    measures="decisions as in float",
    load=load,
)
