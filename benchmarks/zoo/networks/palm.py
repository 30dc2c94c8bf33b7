"""MediaPipe's palm detector: PReLU, resizes, weights in float16.

Rows are random squares of the photographs, lighter and darker; squares of other photographs calibrate.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.zoo import data, tasks
from benchmarks.zoo.network import Loaded, Network


def load(path: Path) -> Loaded:
    return tasks.squares(192, 0, 1)(path, tasks.detections(192))


NETWORK = Network(
    does="Is there a hand in this picture of 192 x 192? MediaPipe palm detection, 1.0 M parameters",
    package="mediapipe",
    file="mediapipe/modules/palm_detection/palm_detection_lite.tflite",
    data=data.PHOTOGRAPHS,
    metric="decisions_equal",
    measures="decisions as in float",
    load=load,
)
