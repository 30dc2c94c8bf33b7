"""Drawings of clothes, or FashionMNIST, downloaded and checked; and a small network for either."""

from __future__ import annotations

import gzip
import hashlib
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from drawings import drawn
from torch import Tensor, nn

SOURCE = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
# File and MD5 sum, from the README of https://github.com/zalandoresearch/fashion-mnist.
FILES = {
    "train_x": ("train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
    "train_y": ("train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
    "test_x": ("t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
    "test_y": ("t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
}
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "micronpu" / "fashion-mnist"


@dataclass(frozen=True)
class Fashion:
    """Images [N, 1, 28, 28] float32 around 0, and the classes 0 to 9 of what is on them."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor


def load(path: Path | None = None, train: int = 10_000, test: int = 2_000) -> Fashion:
    """The first images of the data set.

    Args:
        path: an ``.npz`` with `train_x`, `train_y`, `test_x`, `test_y`, a folder with the four original files, or
            "fashion-mnist" to download these; drawings unless given.
        train, test: how many images of each.
    """
    if path is None:
        arrays = dict(zip(FILES, (*drawn(train, seed=0), *drawn(test, seed=1)), strict=True))
    elif path.suffix == ".npz":
        with np.load(path) as archive:
            arrays = {name: archive[name] for name in FILES}
    else:
        folder = downloaded() if path == Path("fashion-mnist") else path
        arrays = {name: _read(folder / file) for name, (file, _) in FILES.items()}

    def images(name: str, count: int) -> Tensor:
        return (torch.from_numpy(arrays[name][:count].astype(np.float32)) / 255 - 0.2860)[:, None] / 0.3530

    def labels(name: str, count: int) -> Tensor:
        return torch.from_numpy(arrays[name][:count].astype(np.int64))

    return Fashion(images("train_x", train), labels("train_y", train), images("test_x", test), labels("test_y", test))


def downloaded(folder: Path = CACHE) -> Path:
    """The folder with the original files, each fetched if it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, checksum in FILES.values():
        path = folder / file
        if path.is_file():
            continue
        try:
            with urllib.request.urlopen(f"{SOURCE}/{file}", timeout=60) as answer:
                data = answer.read()
        except (urllib.error.URLError, TimeoutError) as error:
            raise SystemExit(
                f"{SOURCE}/{file} cannot be downloaded: {error}. Try: --data with the path of the files, or of an .npz."
            ) from error
        if hashlib.md5(data, usedforsecurity=False).hexdigest() != checksum:
            raise SystemExit(f"{SOURCE}/{file} is not the file that was published: its MD5 sum is another one.")
        part = path.with_suffix(".part")
        part.write_bytes(data)
        part.replace(path)
    return folder


def _read(path: Path) -> np.ndarray:
    """An array of bytes in the format of MNIST: magic number, sizes as big-endian int32, values."""
    data = gzip.decompress(path.read_bytes())
    sizes = np.frombuffer(data, ">i4", count=data[3], offset=4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(sizes)


class Separable(nn.Sequential):
    """Depthwise 3x3, then pointwise, each with batch norm and ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__(
            nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False),
            nn.BatchNorm2d(inputs),
            nn.ReLU(),
            nn.Conv2d(inputs, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
        )


def network() -> nn.Module:
    """A MobileNet of 13 thousand weights for images [N, 1, 28, 28]: 10 class scores."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, 2, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        Separable(16, 32, 1),
        Separable(32, 64, 2),
        Separable(64, 64, 1),
        Separable(64, 64, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(64, 10),
    )
