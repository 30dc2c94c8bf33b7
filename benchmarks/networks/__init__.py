"""Trained networks with the data to calibrate and to judge them: MLPerf Tiny, and two more CIFAR-10 classifiers.

    network = load("resnet8")
    with torch.no_grad():
        print(network.score(network.module(network.inputs)), network.metric)

Weights and data are read from the folder that MICRONPU_DATA names, or else from `../shared/data` beside the repository;
its README describes every network and its licence. The inputs are preprocessed here. Run what uses this module from
the root of the repository, as `python -m benchmarks.name`.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from benchmarks.networks.architectures import (
    Autoencoder,
    CifarNet,
    MobileNetV1,
    ResNet8,
    ResNet20,
    StreamingWakeWord,
    tf_norm,
)
from examples.keyword_spotting.model import DSCNN
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

Metric = Literal["accuracy %", "AUC"]
Array = NDArray[Any]


# ----------------------------------------------------------------------------------------------------------- the data


@dataclass(frozen=True)
class Rows:
    """Preprocessed data of a task; no calibration row is an evaluation row.

    `calibration_y` is None where the calibration data has no labels of its own worth scoring.
    """

    calibration_x: Tensor
    x: Tensor
    y: Tensor
    classes: tuple[str, ...]
    calibration_y: Tensor | None = None


@dataclass(frozen=True)
class TrainedNetwork:
    """A network in eval mode with its data.

    Attributes:
        calibration: float tensors with batch size 1; any prefix is a fair mixture.
        inputs: all evaluation inputs in one tensor, the first dimension being the rows.
        labels: [rows] class numbers; for AUC [recordings], 1 being an anomaly, with `rows / recordings` windows each.
        calibration_labels: for the networks whose calibration rows are labelled rows of the same test file.
    """

    name: str
    module: nn.Module
    calibration: list[Tensor]
    inputs: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    metric: Metric
    calibration_labels: Tensor | None = None

    @property
    def example_inputs(self) -> tuple[Tensor]:
        """What `torch.export` and `micronpu.compile` want."""
        return (self.calibration[0],)

    def score(self, outputs: Tensor | Array) -> float:
        """Accuracy in percent or area under the ROC curve (0..1) of the network's outputs for all of `inputs`.

        Raises:
            ValueError: the number of output rows is not that of the inputs.
        """
        outputs = torch.as_tensor(outputs).detach().float()
        if len(outputs) != len(self.inputs):
            raise ValueError(f"{self.name}: {len(outputs)} rows of outputs for {len(self.inputs)} rows of inputs.")
        if self.metric == "accuracy %":
            return accuracy(outputs, self.labels)
        errors = (self.inputs - outputs).square().mean(1).reshape(len(self.labels), -1).mean(1)
        return area_under_curve(errors, self.labels)


def accuracy(outputs: Tensor, labels: Tensor) -> float:
    """Percent of the rows whose highest class score is at the label."""
    return 100.0 * (outputs.argmax(1) == labels).double().mean().item()


def area_under_curve(scores: Tensor, labels: Tensor) -> float:
    """How often an anomaly scores above a normal recording; a tie counts half."""
    difference = scores[labels == 1][:, None] - scores[labels == 0]
    return ((difference > 0).double() + 0.5 * (difference == 0).double()).mean().item()


def data_folder() -> Path:
    """MICRONPU_DATA, or the folder beside the repository.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    folder = Path(os.environ.get("MICRONPU_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
    if not folder.is_dir():
        raise FileNotFoundError(
            f"The trained networks and their data are not at {folder}. Try: set MICRONPU_DATA to the folder."
        )
    return folder


def read(name: str) -> dict[str, Array]:
    """All arrays of `name`.npz.

    Raises:
        FileNotFoundError: the data folder or the file is missing.
    """
    path = data_folder() / f"{name}.npz"
    if not path.is_file():
        raise FileNotFoundError(f"The data folder {path.parent} has no {path.name}. Try: fetch the folder again.")
    with np.load(path) as archive:
        return {key: archive[key] for key in archive.files}


def as_classes(y: Array) -> Tensor:
    return torch.from_numpy(y.astype(np.int64))


# A function that makes rows takes how many it shall judge at most, so that nothing is decoded only to be thrown away.


def cifar10(
    most: int | None = None,
    *,
    mean: tuple[float, ...] = (0.0,),
    std: tuple[float, ...] = (1.0,),
    unit: float = 1.0,
) -> Rows:
    """CIFAR-10: 500 training images for calibration, 1405 test images; `(x / unit - mean) / std` per channel."""
    data = read("ic_cifar10")

    def prepare(images: Array) -> Tensor:
        x = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous().float() / unit
        return (x - torch.tensor(mean).reshape(1, -1, 1, 1)) / torch.tensor(std).reshape(1, -1, 1, 1)

    return Rows(
        prepare(data["calib_x"]),
        prepare(data["test_x"][:most]),
        as_classes(data["test_y"][:most]),
        tuple(map(str, data["classes"])),
    )


def split_rows(x: Tensor, y: Tensor, classes: Array, calibration: Tensor, most: int | None) -> Rows:
    """Takes the rows numbered in `calibration` away from the evaluation."""
    held_out = torch.ones(len(y), dtype=torch.bool)
    held_out[calibration] = False
    judged = held_out.nonzero()[:most, 0]
    return Rows(x[calibration], x[judged], y[judged], tuple(map(str, classes)), y[calibration])


def keyword_features(most: int | None = None) -> Rows:
    """Speech Commands as MFCC [N, 1, 49, 10]: rows 0..99 calibrate, 100..999 judge."""
    data = read("kws_mfcc")
    return split_rows(
        torch.from_numpy(data["x"])[:, None], as_classes(data["y"]), data["classes"], torch.arange(100), most
    )


def person_images(most: int | None = None) -> Rows:
    """COCO photos [N, 3, 96, 96], RGB 0..1: rows 0..99 calibrate, 100..999 judge. The JPEGs store BGR."""
    data, calibration = read("vww_images"), torch.arange(100)
    count = None if most is None else len(calibration) + most
    files, offset, y = data["jpeg"].tobytes(), data["offset"][: None if count is None else count + 1], data["y"][:count]
    images = [np.asarray(Image.open(io.BytesIO(files[a:b])))[..., ::-1] for a, b in pairwise(offset)]
    x = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous().float() / 255
    return split_rows(x, as_classes(y), data["classes"], calibration, most)


def wake_word_features(most: int | None = None) -> Rows:
    """45 samples [N, 40, 30, 1], 15 of each class in a row: the first five of each calibrate, the others judge."""
    data = read("sww_lfbe")
    x = torch.from_numpy(data["x"]).permute(0, 2, 1)[..., None].contiguous()
    calibration = (torch.arange(5)[:, None] + torch.arange(0, 45, 15)).flatten()  # 0, 15, 30, 1, ...: classes mixed
    return split_rows(x, as_classes(data["y"]), data["classes"], calibration, most)


def machine_sounds(most: int | None = None) -> Rows:
    """ToyCar log-mel windows [N, 640]: 192 of 12 normal recordings, and all 96 of each of the 248 test recordings.

    Args:
        most: recordings, evenly spread over the normal ones and the anomalies that follow them.
    """
    data = read("ad_toycar_nc")

    def windows(spectrograms: Array) -> Array:
        """[R, 100, 128] -> [R, 96, 640]: window i is the frames i..i+4, one after the other."""
        five = np.lib.stride_tricks.sliding_window_view(spectrograms, 5, axis=1)
        return five.swapaxes(2, 3).reshape(len(five), 96, 640).astype(np.float32)

    calibration = windows(data["calib_spec"])[:, ::6].swapaxes(0, 1).reshape(-1, 640)  # recordings mixed
    count = len(data["test_y"])
    judged = torch.linspace(0, count - 1, count if most is None else min(most, count)).round().long().numpy()
    test = windows(data["test_spec"][judged]).reshape(-1, 640)
    return Rows(
        torch.from_numpy(calibration), torch.from_numpy(test), as_classes(data["test_y"][judged]), ("normal", "anomaly")
    )


# -------------------------------------------------------------------------------------------------------- the registry


@dataclass(frozen=True)
class Entry:
    """How to make one network: its class, the file of its weights, its data."""

    make: Callable[[], nn.Module]
    weights: str
    rows: Callable[[int | None], Rows]
    metric: Metric = "accuracy %"
    without_biases: tuple[str, ...] = ()


IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

NETWORKS: dict[str, Entry] = {
    "resnet8": Entry(ResNet8, "ic_resnet8", cifar10),
    "resnet20": Entry(ResNet20, "ic_resnet20", partial(cifar10, mean=IMAGENET_MEAN, std=IMAGENET_STD, unit=255.0)),
    "cifarnet": Entry(CifarNet, "ic_cifarnet", partial(cifar10, mean=(0.5,), std=(0.5,), unit=255.0)),
    "dscnn": Entry(partial(DSCNN, norm=tf_norm), "kws_dscnn", keyword_features),
    "dscnn_folded": Entry(DSCNN, "kws_dscnn_folded", keyword_features),
    "mobilenetv1": Entry(MobileNetV1, "vww_mobilenetv1", person_images),
    "autoencoder": Entry(Autoencoder, "ad_fcae", machine_sounds, "AUC"),
    # What MLPerf Tiny's LiteRT files hold: they lost nine biases. Compare with these files through this one.
    "autoencoder_litert": Entry(
        Autoencoder, "ad_fcae", machine_sounds, "AUC", tuple(f"fc{number}.bias" for number in range(1, 10))
    ),
    "wake_word": Entry(StreamingWakeWord, "sww_dscnn", wake_word_features),
}


def load(name: str, *, limit: int | None = None) -> TrainedNetwork:
    """A trained network with its data.

    Args:
        name: a key of `NETWORKS`.
        limit: at most so many evaluation rows, the first ones; for an autoencoder recordings, evenly spread over the
            normal ones and the anomalies that follow them.

    Raises:
        ValueError: no network has this name.
        FileNotFoundError: the data folder is missing.
    """
    if name not in NETWORKS:
        raise ValueError(f"No trained network is named {name!r}. Known: {', '.join(NETWORKS)}.")
    entry = NETWORKS[name]
    state = {key: torch.from_numpy(value) for key, value in read(entry.weights).items()}
    for key in entry.without_biases:
        state[key] = torch.zeros_like(state[key])
    module = entry.make()
    module.load_state_dict(state)

    rows = entry.rows(limit)
    return TrainedNetwork(
        name=name,
        module=module.eval(),
        calibration=list(rows.calibration_x.split(1)),
        inputs=rows.x,
        labels=rows.y,
        classes=rows.classes,
        metric=entry.metric,
        calibration_labels=rows.calibration_y,
    )
