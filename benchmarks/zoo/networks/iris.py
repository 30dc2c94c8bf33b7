"""76 points of an eye and its iris in 64 x 64 (MediaPipe): convolutions with PReLU.

Rows are the upper left quarters of faces found in the photographs, where an eye is; other faces calibrate.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.zoo import faces, tasks
from benchmarks.zoo.network import Loaded, Network


def load(path: Path) -> Loaded:
    rows = tasks.face_rows(160, lambda a: a[32:96, 24:88] / 255)
    return Loaded(None, *rows, tasks.points(64, 3))


NETWORK = Network(
    does="Where are 71 points around this eye, and its iris? MediaPipe iris, 0.7 M parameters",
    package="mediapipe",
    file="mediapipe/modules/iris_landmark/iris_landmark.tflite",
    data=faces.PACKAGES,
    metric="agreement",
    measures="1 less the mean distance by the size of the picture",
    load=load,
)
