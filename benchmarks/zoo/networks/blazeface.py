"""MediaPipe's face detector for short range: depthwise convolutions with residuals, weights in float16.

Rows are random squares of the photographs, lighter and darker; squares of other photographs calibrate.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.zoo import data, tasks
from benchmarks.zoo.network import Loaded, Network


def load(path: Path) -> Loaded:
    return tasks.squares(128, -1, 1)(path, tasks.detections(128))


NETWORK = Network(
    does="Is there a face in this picture of 128 x 128? BlazeFace, 0.1 M parameters",
    package="mediapipe",
    file="mediapipe/modules/face_detection/face_detection_short_range.tflite",
    data=data.PHOTOGRAPHS,
    metric="decisions_equal",
    measures="decisions as in float",
    load=load,
)
