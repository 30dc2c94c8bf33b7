"""68 points of a face of 112 x 112: three densely added blocks of separable convolutions, a mean.

Weights of eight bits, rebuilt from TensorFlow.js. Rows are faces found in the photographs; other faces calibrate.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.zoo import faceapi, faces, tasks
from benchmarks.zoo.network import Loaded, Network
from benchmarks.zoo.weights import tensorflow_js


def load(path: Path) -> Loaded:
    model = faceapi.Extractor(tensorflow_js(path), 3, 3, softmax=False).eval()
    return Loaded(model, *tasks.face_rows(112, faceapi.normalized), tasks.points(1, 2))


NETWORK = Network(
    does="Where are 68 points of this face? face-api tiny, 0.08 M parameters",
    package="@vladmandic/face-api",
    file=f"{faceapi.FOLDER}/face_landmark_68_tiny_model-weights_manifest.json",
    data=faces.PACKAGES,
    metric="agreement",
    measures="1 less the mean distance by the size of the face",
    load=load,
)
