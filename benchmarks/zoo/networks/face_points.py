"""468 points of a face of 192 x 192 (MediaPipe's face mesh): depthwise convolutions with PReLU, weights in float16.

Rows are faces found in the photographs; other faces calibrate.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.zoo import faces, tasks
from benchmarks.zoo.network import Loaded, Network


def load(path: Path) -> Loaded:
    return Loaded(None, *tasks.face_rows(192, lambda a: a / 255), tasks.points(192, 3))


NETWORK = Network(
    does="Where are 468 points of this face? MediaPipe face mesh, 0.6 M parameters",
    package="mediapipe",
    file="mediapipe/modules/face_landmark/face_landmark.tflite",
    data=faces.PACKAGES,
    metric="agreement",
    measures="1 less the mean distance by the size of the face",
    load=load,
)
