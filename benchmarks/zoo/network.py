"""A network of the zoo: where it comes from, how it is built, and how its answers are judged."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from benchmarks.zoo import networks, packages
from torch import Tensor, nn

Row = tuple[Tensor, ...]
"""Inputs of one call."""
Outputs = list[list[Tensor]]
"""For each call, its outputs."""
Figures = dict[str, Any]


@dataclass
class Loaded:
    """A network with its data.

    Attributes:
        model: None where micronpu reads the file itself; float is then what LiteRT or onnxruntime computes of it.
        calibration: rows; of a streaming network recordings, lists of rows that follow one another.
        test: rows that did not calibrate, likewise.
        task: from float outputs and other outputs to figures; the one that decides is at most 1, larger is better.
    """

    model: nn.Module | None
    calibration: list[Any]
    test: list[Any]
    task: Callable[[Outputs, Outputs], Figures]


@dataclass(frozen=True)
class Network:
    """A trained network that a package ships.

    Attributes:
        does: the question that it answers, and its size.
        package: name in `packages.PACKAGES`.
        file: of the weights, inside of the package.
        data: names of the packages that its rows come from.
        metric: key of the figure that decides.
        measures: the metric in words.
        load: builds it from its file.
        licence: of the file, where it is not the package's.
        streaming: whether states carry over from call to call.
        labels: whether the metric uses true labels; otherwise it is agreement with float.
        rebuilt: whether a .tflite or .onnx file is rebuilt in PyTorch; others always are.
    """

    does: str
    package: str
    file: str
    data: tuple[str, ...]
    metric: str
    measures: str
    load: Callable[[Path], Loaded]
    licence: str = ""
    streaming: bool = False
    labels: bool = False
    rebuilt: bool = False

    @property
    def path(self) -> Path:
        """Of the fetched file."""
        return packages.unpacked(self.package) / self.file

    @property
    def needs(self) -> set[str]:
        """The packages to fetch."""
        return {self.package, *self.data}


@cache
def registry() -> dict[str, Network]:
    """All networks by name, which is that of the module."""
    names = sorted(module.name for module in pkgutil.iter_modules(networks.__path__))
    modules = {name: importlib.import_module(f"{networks.__name__}.{name}") for name in names}
    return {name: module.NETWORK for name, module in modules.items() if hasattr(module, "NETWORK")}


def t32(a: Any) -> Tensor:
    """A float tensor of an array."""
    import numpy as np

    return torch.from_numpy(np.ascontiguousarray(np.asarray(a, np.float32)))


def every(rows: list[Any], n: int) -> list[Any]:
    """At most n rows, spread evenly."""
    step = (len(rows) - 1) / max(1, min(n, len(rows)) - 1)
    return [rows[int(k * step + 1e-9)] for k in range(min(n, len(rows)))]


def split(rows: list[Any], n_calibration: int, n_test: int) -> tuple[list[Any], list[Any]]:
    """Even rows to calibrate, odd rows to judge."""
    return every(rows[::2], n_calibration), every(rows[1::2], n_test)


def output(outputs: Outputs, k: int = 0) -> Tensor:
    """One output of all rows in one tensor."""
    return torch.cat([row[k] for row in outputs])


def share(equal: Tensor) -> float:
    """Share of true values."""
    return round(equal.float().mean().item(), 4)


def mean(values: Tensor, digits: int = 4) -> float:
    """Mean, rounded."""
    return round(values.float().mean().item(), digits)
