"""Emotion of a face of 112 x 112: four densely added blocks of separable convolutions, a mean, a softmax.

Weights of eight bits, rebuilt from TensorFlow.js. Rows are faces found in the photographs; other faces calibrate.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.zoo import faceapi, faces, tasks
from benchmarks.zoo.network import Loaded, Network
from benchmarks.zoo.weights import tensorflow_js


def load(path: Path) -> Loaded:
    model = faceapi.Extractor(tensorflow_js(path), 4, 4, softmax=True).eval()
    return Loaded(model, *tasks.face_rows(112, faceapi.normalized), tasks.classes)


NETWORK = Network(
    does="Which of seven emotions does this face show? face-api, 0.3 M parameters",
    package="@vladmandic/face-api",
    file=f"{faceapi.FOLDER}/face_expression_model-weights_manifest.json",
    data=faces.PACKAGES,
    metric="same_class",
    measures="same emotion as in float",
    load=load,
)
