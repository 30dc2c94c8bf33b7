"""LiteRT's reference kernels, which compute every tensor of a file in a separate process."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from micronpu.base.arrays import Array
from micronpu.base.errors import ModelError, OptionError, one_of
from micronpu.base.texts import plural
from micronpu.base.worker import Head, Message
from micronpu.frontend.model_files.litert import DTYPES, FileTensor, LiteRtFile
from micronpu.frontend.model_files.network import Shapes
from micronpu.frontend.model_files.own_runtime import Row, RuntimeRefusalError
from micronpu.frontend.model_files.runtime_process import RuntimeProcess

_MOVES = ("CAST", "RESHAPE", "EXPAND_DIMS", "SQUEEZE", "QUANTIZE", "SLICE", "STRIDED_SLICE")
"""Operators behind which an index is still the same index."""


class LiteRtRuntime:
    """A file in LiteRT's interpreter; see `OwnRuntime`.

    Args:
        file: parsed from ``data``.
        keys: of the tensors that `tensor` will be called with.

    Raises:
        RuntimeRefusalError: LiteRT does not load the file.
    """

    title = "LiteRT"

    def __init__(self, file: LiteRtFile, data: bytes, keys: Sequence[Hashable]) -> None:
        self._file, self._data = file, data
        self._tensors = {t.index: t for t in file.tensors if t.key in keys}
        self._values: dict[int, Array] = {}
        self._process: RuntimeProcess | None = None

    def __enter__(self) -> LiteRtRuntime:
        """Start the process and load the file, with all states at their initial values."""
        self._process = RuntimeProcess("litert", "LiteRT")
        self._process.ask({"do": "load", "shapes": [list(t.shape) for t in self._file.inputs]}, [self._data])
        return self

    def __exit__(self, *error: object) -> None:
        if self._process is not None:
            self._process.stop()
            self._process = None

    def _ask(self, head: Head, blobs: Sequence[bytes] = ()) -> Message:
        assert self._process is not None
        return self._process.ask(head, blobs)

    def sizes(self) -> dict[int, tuple[int, ...]]:
        """Return the shapes of all tensors, by index, for the shapes of the inputs."""
        answer, _ = self._ask({"do": "sizes"})
        return {int(index): tuple(map(int, shape)) for index, shape in answer["shapes"]}

    def begin(self) -> None:
        """Load the file again, as its states begin with their initial values, unless it has not run yet."""
        if self._values:
            self._values.clear()
            if any(operator.kind == "CALL_ONCE" for operator in self._file.operators):
                self.__exit__()
                self.__enter__()
            else:
                self._ask({"do": "begin"})

    def run(self, inputs: Row) -> None:
        """Run one call; see `OwnRuntime`."""
        arrays = [_stored(t, v).tobytes() for t, v in zip(self._file.inputs, inputs, strict=True)]
        answer, blobs = self._ask({"do": "run", "tensors": list(self._tensors)}, arrays)
        self._values = {
            index: np.frombuffer(blob, kind[0]).reshape(kind[1])
            for index, kind, blob in zip(self._tensors, answer["tensors"], blobs, strict=True)
            if kind is not None
        }

    def tensor(self, key: Hashable) -> torch.Tensor | None:
        """Return a tensor of the last call; see `OwnRuntime`."""
        assert isinstance(key, tuple)
        index = key[1]
        return _real(self._tensors[index], self._values[index]) if key[0] == 0 and index in self._values else None

    def represented(self, inputs: Row) -> Row:
        """Return the inputs as the file's integers represent them; integers of the file are dequantized."""
        return tuple(_represented(t, v) for t, v in zip(self._file.inputs, inputs, strict=True))

    def limits(self, i: int) -> tuple[float, float] | None:
        """Return the range of a quantized input, or of an index; see `OwnRuntime`."""
        given = self._file.inputs[i]
        if given.rounding is not None:
            return given.rounding.limits
        sizes = list(_indexed(self._file, given))
        if sizes:
            return 0, min(sizes) - 1
        return None if given.type in ("FLOAT32", "FLOAT16", "BOOL") else (0, 127) if given.type == "UINT8" else (-9, 9)


def _represented(given: FileTensor, value: torch.Tensor) -> torch.Tensor:
    if given.rounding is not None:
        return _real(given, value.numpy() if not value.is_floating_point() else _stored(given, value))
    if given.type == "FLOAT16":
        return value.to(torch.float16).float()
    return value.round() if given.type == "UINT8" else value


def _stored(given: FileTensor, value: torch.Tensor) -> Array:
    """Return an input in the file's dtype."""
    dtype = np.dtype(DTYPES[given.type])
    if not given.scale or given.rounding is None:
        return value.numpy().astype(dtype)
    limits = np.iinfo(dtype)
    integers = np.round(value.numpy().astype(np.float64) / given.scale[0]) + given.zero_point[0]
    clamped: Array = integers.clip(limits.min, limits.max)
    return clamped.astype(dtype)


def _real(given: FileTensor, value: Array) -> torch.Tensor:
    """Return a tensor of the file as the network has it."""
    if given.rounding is None:
        return torch.from_numpy(value.astype(np.float32) if given.type in ("FLOAT16", "UINT8") else value.copy())
    shifted = (value.astype(np.int16) - 128).astype(np.int8) if value.dtype == np.uint8 else value.copy()
    return given.rounding.dequantize(torch.from_numpy(shifted))


def _indexed(file: LiteRtFile, given: FileTensor) -> Iterator[int]:
    """Yield the sizes of the axes that a tensor is an index of."""
    same = {given.key}
    for operator in file.operators:
        keys = [None if t is None else t.key for t in operator.inputs]
        if operator.kind in _MOVES and keys[0] in same:
            same.update(t.key for t in operator.outputs)
        elif operator.kind == "GATHER" and keys[1] in same:
            yield operator.operand(0).shape[operator.option("axis", 0)]
        elif operator.kind == "GATHER_ND" and keys[1] in same:
            yield min(operator.operand(0).shape)
        elif operator.kind == "EMBEDDING_LOOKUP" and keys[0] in same:
            yield operator.operand(1).shape[0]


def sizes_of(file: LiteRtFile, data: bytes, shapes: Shapes) -> dict[int, tuple[int, ...]]:
    """Return the shapes of all tensors for inputs of the given shapes, in order or by name."""
    names = [t.name for t in file.inputs]
    if not isinstance(shapes, Mapping) and len(shapes) != len(names):
        raise OptionError(
            f"The file has {plural(len(names), 'input')}, but got {len(shapes)}.", hint="a shape for each"
        )
    given = shapes if isinstance(shapes, Mapping) else dict(zip(names, shapes, strict=True))
    inputs = []
    for name, shape in given.items():
        if name not in names or len(shape) != len(file.inputs[names.index(name)].shape):
            raise OptionError(f"There is no input `{name}` of rank {len(shape)}.", hint=one_of(names, name, "the file"))
    for one in file.inputs:
        wanted = given.get(one.name, one.shape)
        sizes = zip(one.shape, one.open or (False,) * len(one.shape), wanted, strict=True)
        inputs.append(replace(one, shape=tuple(w if is_open else n for n, is_open, w in sizes)))
    if [t.shape for t in inputs] == [t.shape for t in file.inputs]:
        return {}
    try:
        with LiteRtRuntime(replace(file, inputs=tuple(inputs)), data, ()) as runtime:
            return runtime.sizes()
    except RuntimeRefusalError as error:
        raise ModelError(
            f"LiteRT cannot compute with the given shapes: {error.what}", hint="shapes that fit the model"
        ) from error
