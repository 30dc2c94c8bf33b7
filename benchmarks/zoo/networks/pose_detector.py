"""MediaPipe's detector of people: a feature pyramid with depth-to-space, weights in float16, sparse.

Rows are random squares of the photographs, lighter and darker; squares of other photographs calibrate.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.zoo import data, tasks
from benchmarks.zoo.network import Loaded, Network


def load(path: Path) -> Loaded:
    return tasks.squares(224, -1, 1)(path, tasks.detections(224))


NETWORK = Network(
    does="Is there a person in this picture of 224 x 224? BlazePose's detector, sparse weights",
    package="mediapipe",
    file="mediapipe/modules/pose_detection/pose_detection.tflite",
    data=data.PHOTOGRAPHS,
    metric="decisions_equal",
    measures="decisions as in float",
    load=load,
)
