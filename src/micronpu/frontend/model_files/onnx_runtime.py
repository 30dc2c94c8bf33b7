"""onnxruntime, which computes every tensor of an ONNX file in a separate process."""

from __future__ import annotations

import importlib.util
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from micronpu.base.arrays import Array
from micronpu.base.errors import ModelError
from micronpu.frontend.model_files.budget import Budget
from micronpu.frontend.model_files.network import Network
from micronpu.frontend.model_files.onnx_constants import with_data
from micronpu.frontend.model_files.own_runtime import Row, RuntimeRefusalError
from micronpu.frontend.model_files.runtime_process import RuntimeProcess
from micronpu.frontend.program import BYTE_SHIFT

_LARGEST = 1 << 29
"""Limit of a file with its external data in bytes: the process holds it several times."""
_INDEXING = ("Gather", "GatherElements", "GatherND", "OneHot", "ScatterElements", "ScatterND", "TensorScatter")
_DTYPES = {np.dtype(name) for name in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "?")}


class OnnxRuntime:
    """A file in onnxruntime; see `OwnRuntime`.

    Args:
        data: the file.
        path: its place, for external data.
        network: read from it.
    """

    title = "onnxruntime"

    def __init__(self, data: bytes, path: Path, network: Network) -> None:
        self._data, self._path, self._network = data, path, network
        self._names: list[str] = []
        self._kinds: dict[str, np.dtype[Any]] = {}
        self._indices = False
        self._values: dict[str, Array] = {}
        self._process: RuntimeProcess | None = None

    def __enter__(self) -> OnnxRuntime:
        if importlib.util.find_spec("onnxruntime") is None:
            raise RuntimeRefusalError("`pip install onnxruntime` installs what it is compared with.")
        data = self._model()
        self._process = RuntimeProcess("onnx", self.title)
        self._process.ask({"do": "load"}, [data])
        return self

    def __exit__(self, *error: object) -> None:
        if self._process is not None:
            self._process.stop()

    def _model(self) -> bytes:
        """Return the file with its external data, and with all tensors that are compared as outputs."""
        import onnx

        model = onnx.ModelProto.FromString(self._data)
        try:
            with_data(model, self._path, Budget())
        except ModelError as error:
            raise RuntimeRefusalError(error.what) from error
        graph = model.graph
        initial = {i.name for i in graph.initializer}
        for given in graph.input:
            if given.name not in initial:
                self._kinds[given.name] = onnx.helper.tensor_dtype_to_np_dtype(given.type.tensor_type.elem_type)
        self._indices = any(node.op_type in _INDEXING for node in graph.node)
        self._names = list(dict.fromkeys(key[0] for key in self._network.keys if isinstance(key, tuple)))
        known = {given.name for given in graph.output}
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in self._names if name not in known)
        if model.ByteSize() > _LARGEST:
            raise RuntimeRefusalError(f"The file has more than {_LARGEST >> 20} MiB.")
        made: bytes = model.SerializeToString()
        return made

    def begin(self) -> None:
        """Do nothing: files have no states."""

    def run(self, inputs: Row) -> None:
        """Run one call; see `OwnRuntime`."""
        assert self._process is not None
        arrays = [v.numpy().astype(kind) for v, kind in zip(inputs, self._kinds.values(), strict=True)]
        described = [[n, a.dtype.str, list(a.shape)] for n, a in zip(self._kinds, arrays, strict=True)]
        head = {"do": "run", "inputs": described, "tensors": self._names}
        answer, blobs = self._process.ask(head, [a.tobytes() for a in arrays])
        self._values = {
            name: np.frombuffer(blob, kind[0]).reshape(kind[1])
            for name, kind, blob in zip(self._names, answer["tensors"], blobs, strict=True)
            if kind is not None and np.dtype(kind[0]) in _DTYPES
        }

    def tensor(self, key: Hashable) -> torch.Tensor | None:
        """Return a tensor of the last call; see `OwnRuntime`."""
        assert isinstance(key, tuple)
        name, is_bytes = key
        if (value := self._values.get(name)) is None:
            return None
        if is_bytes and value.dtype == np.uint8:
            value = (value.astype(np.int16) - BYTE_SHIFT).astype(np.int8)
        return torch.from_numpy(value.astype(np.float32) if value.dtype == np.float64 else value.copy())

    def represented(self, inputs: Row) -> Row:
        """Return the inputs rounded to the file's floats; see `OwnRuntime`."""
        return tuple(
            torch.from_numpy(v.numpy().astype(kind).astype(v.numpy().dtype))
            for v, kind in zip(inputs, self._kinds.values(), strict=True)
        )

    def limits(self, i: int) -> tuple[float, float] | None:
        """Return a range that fits indices, if the file has some; see `OwnRuntime`."""
        kind = list(self._kinds.values())[i]
        if kind.kind == "u" or kind.itemsize == 1:
            return None if kind.kind == "b" else (0, 127)
        return None if kind.kind != "i" else (0, 1) if self._indices else (-9, 9)
