"""MediaPipe's segmentation of people: hard swish, squeeze and excitation, a decoder with an operator of MediaPipe's
own.

Rows are random squares of the photographs, lighter and darker; squares of other photographs calibrate.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.zoo import data, tasks
from benchmarks.zoo.network import Loaded, Network


def load(path: Path) -> Loaded:
    return tasks.squares(256, 0, 1)(path, tasks.masks)


NETWORK = Network(
    does="Which pixels of this picture are a person? MediaPipe selfie segmentation, 0.1 M parameters",
    package="mediapipe",
    file="mediapipe/modules/selfie_segmentation/selfie_segmentation.tflite",
    data=data.PHOTOGRAPHS,
    metric="overlap",
    measures="overlap of the masks with float's",
    load=load,
)
