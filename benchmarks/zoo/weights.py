"""Weights out of Keras, ONNX and TensorFlow.js files, as PyTorch layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.zoo.network import t32
from torch import nn

Weights = dict[str, np.ndarray]


def keras(path: Path) -> Weights:
    """Arrays of a Keras HDF5 file by layer and variable: "conv2d_1/kernel"."""
    import h5py

    w: Weights = {}

    def see(name: str, o: Any) -> None:
        if isinstance(o, h5py.Dataset):
            w[name.split("/")[0] + "/" + name.split("/")[-1].replace(":0", "")] = np.array(o)

    with h5py.File(path, "r") as f:
        f["model_weights" if "model_weights" in f else "/"].visititems(see)
    return w


def onnx(path: Path) -> tuple[Any, Weights]:
    """The graph of an ONNX file, and its constants by name."""
    import onnx as library
    from onnx import numpy_helper

    graph = library.load(path).graph
    w = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    for n in graph.node:
        if n.op_type == "Constant" and n.attribute[0].name == "value":
            w[n.output[0]] = numpy_helper.to_array(n.attribute[0].t)
    return graph, w


def linear(w: np.ndarray, b: np.ndarray | None = None) -> nn.Linear:
    """A weight (in, out) as a Linear."""
    m = nn.Linear(*w.shape, bias=b is not None)
    m.weight.data = t32(w.T)
    if b is not None:
        m.bias.data = t32(b)
    return m


def conv2d(kernel: np.ndarray, bias: np.ndarray | None = None, stride: int = 1, padding: int = 0) -> nn.Conv2d:
    """A kernel (height, width, in, out) as a Conv2d."""
    m = nn.Conv2d(*kernel.shape[2:], kernel.shape[:2], stride, padding, bias=bias is not None)
    m.weight.data = t32(kernel.transpose(3, 2, 0, 1))
    if bias is not None:
        m.bias.data = t32(bias)
    return m


def depthwise(kernel: np.ndarray, stride: int = 1, padding: int = 1) -> nn.Conv2d:
    """A kernel (height, width, channels, 1) as a depthwise Conv2d without bias."""
    n = kernel.shape[2]
    m = nn.Conv2d(n, n, kernel.shape[:2], stride, padding, groups=n, bias=False)
    m.weight.data = t32(kernel.transpose(2, 3, 0, 1))
    return m


def batch_norm(w: Weights, name: str, m: nn.Module) -> nn.Module:
    """Fills a batch norm from a Keras layer."""
    m.weight.data, m.bias.data = t32(w[f"{name}/gamma"]), t32(w[f"{name}/beta"])
    m.running_mean, m.running_var = t32(w[f"{name}/moving_mean"]), t32(w[f"{name}/moving_variance"])
    return m


def tensorflow_js(manifest: Path) -> Weights:
    """Arrays of a TensorFlow.js manifest by name, dequantized."""
    import json

    w: Weights = {}
    for group in json.loads(manifest.read_text(encoding="utf-8")):
        data, at = b"".join((manifest.parent / name).read_bytes() for name in group["paths"]), 0
        for entry in group["weights"]:
            packed = entry.get("quantization")
            kind = np.dtype(packed["dtype"] if packed else entry["dtype"])
            n = int(np.prod(entry["shape"]))
            a = np.frombuffer(data, kind, n, at).reshape(entry["shape"]).astype(np.float32)
            w[entry["name"]] = a * packed["scale"] + packed["min"] if packed else a
            at += n * kind.itemsize
    return w
