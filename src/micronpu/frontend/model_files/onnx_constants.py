"""Constants of an ONNX file: numbers in the file, or external data in plain files of its folder."""

from __future__ import annotations

import math
import os
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch

from micronpu.base.errors import FileError, ModelError, UnsupportedError
from micronpu.base.files import read_file
from micronpu.frontend.model_files.budget import Budget, Cost, reading
from micronpu.frontend.model_files.network import DAMAGED

_HALF_BYTES = ("INT4", "UINT4", "FLOAT4E2M1")


def constant_of(given: Any, name: str, path: Path, budget: Budget) -> torch.Tensor:
    """Return a `TensorProto`, anywhere in the file, as a tensor; floats as float32."""
    import onnx
    from onnx import numpy_helper

    where = f"The constant `{name}` of {path}"
    elements = math.prod(given.dims)
    if min(given.dims, default=0) < 0:
        raise ModelError(f"{where} has the shape {list(given.dims)}.", hint=DAMAGED)
    budget.spend(Cost.CONSTANTS, elements, where)
    with reading(where, "is damaged", DAMAGED):
        if given.data_location == onnx.TensorProto.EXTERNAL:
            data = _external(given, elements, where, path)
            given = onnx.TensorProto(data_type=given.data_type, dims=given.dims, raw_data=data)
        values = numpy_helper.to_array(given)
    if values.dtype.kind not in "fiub":
        raise UnsupportedError(f"{where} is of {values.dtype}.", hint="numbers")
    return torch.from_numpy(np.array(values, np.float32 if values.dtype.kind == "f" else values.dtype))


def with_data(message: Any, path: Path, budget: Budget) -> None:
    """Put the external data of all constants, anywhere in a message of ONNX, into the message."""
    import onnx

    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for inner in [value] if hasattr(value, "ListFields") else value:
            if not isinstance(inner, onnx.TensorProto):
                with_data(inner, path, budget)
            elif inner.data_location == onnx.TensorProto.EXTERNAL:
                where, elements = f"The constant `{inner.name}` of {path}", math.prod(inner.dims)
                budget.spend(Cost.CONSTANTS, elements, where)
                data = _external(inner, elements, where, path)
                inner.CopyFrom(
                    onnx.TensorProto(name=inner.name, data_type=inner.data_type, dims=inner.dims, raw_data=data)
                )


def _external(given: Any, elements: int, where: str, path: Path) -> bytes:
    """Return the bytes of a constant in a data file, of which only plain files inside the model's folder are read."""
    import onnx

    entries = {entry.key: entry.value for entry in given.external_data}
    location, offset, length = entries.get("location", ""), entries.get("offset", "0"), entries.get("length")
    width = onnx.helper.tensor_dtype_to_np_dtype(given.data_type).itemsize
    is_half = onnx.TensorProto.DataType.Name(given.data_type) in _HALF_BYTES
    size = -(-elements // 2) if is_half else elements * width
    outside = f"{where} is in the file `{location}`, and only plain files in the model's folder are read"
    hint = "onnx.save(onnx.load(path), 'whole.onnx'), if you trust the file; it puts all constants into one file"
    inner = PurePosixPath(location.replace("\\", "/"))
    if not inner.parts or inner.is_absolute() or ".." in inner.parts or ":" in location or "\0" in location:
        raise ModelError(f"{outside}.", hint=hint)
    if not (offset.isascii() and offset.isdecimal() and len(offset) < 20) or (length or str(size)) != str(size):
        raise ModelError(
            f"{where} has {size} bytes by its shape, and the file states {length} bytes at {offset}.", hint=DAMAGED
        )
    folder = os.path.realpath(path.parent)
    place = os.path.join(folder, *inner.parts)
    if os.path.realpath(place) != place:
        raise ModelError(f"{outside}: it is a link, or behind one.", hint=hint)
    try:
        data = read_file(place, begin=int(offset), size=size, links=False)
    except FileError as error:
        raise ModelError(f"{outside}: {error.what}", hint=f"the file {inner.name} beside {path.name}") from error
    if len(data) != size:
        raise ModelError(
            f"{where} is {size} bytes at {offset} of `{location}`, which ends before.",
            hint=f"copy {path.name} and {inner.name} again, from the same export",
        )
    return data
