"""Reader of ONNX files, with the `onnx` package.

Sizes and constants are checked while they are read; nothing outside the file is opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch

from micronpu.base.errors import ModelError, UnsupportedError
from micronpu.frontend.model_files.network import Network, Shapes
from micronpu.frontend.model_files.onnx_builder import DAMAGED, OnnxBuilder, OnnxNode
from micronpu.frontend.model_files.onnx_layers import LOWERINGS

OLDEST_OPSET = 11


def read_onnx(data: bytes, path: Path, shapes: Shapes = ()) -> Network:
    """Return the file as a module with the file's inputs and outputs.

    Args:
        path: for messages.
        shapes: of the inputs, in order or by name, for those whose sizes the file leaves open.

    Raises:
        ModelError: `onnx` is not installed, or the file is damaged, too old, or has sizes that are not fixed.
        UnsupportedError: a node is unsupported; the message names it.
    """
    try:
        import onnx
    except ModuleNotFoundError as error:
        raise ModelError("Reading ONNX needs the package `onnx`.", hint='pip install "micronpu[onnx]"') from error

    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
        opset = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)
        if not model.graph.node:
            raise ValueError("no nodes")
    except Exception as error:  # the exception class depends on protobuf's version
        raise ModelError(f"{path} is no ONNX model, or is damaged.", hint=DAMAGED) from error
    if opset < OLDEST_OPSET:
        raise ModelError(
            f"{path} is of opset {opset}; files of opset {OLDEST_OPSET} and newer are read.",
            hint="onnx.version_converter.convert_version(model, 17)",
        )
    builder = OnnxBuilder()
    for initializer in model.graph.initializer:
        builder.values[initializer.name] = _initializer(initializer, path)
    _inputs(builder, [i for i in model.graph.input if i.name not in builder.values], shapes, path)
    if not builder.inputs or not model.graph.output:
        raise ModelError(f"{path} has no inputs or no outputs.", hint="a model with both")
    _walk(builder, model.graph.node, opset, path)
    outputs = [builder.values.get(given.name) for given in model.graph.output]
    for given, number in zip(model.graph.output, outputs, strict=True):
        if not isinstance(number, int):
            raise ModelError(f"The output `{given.name}` of {path} does not depend on the inputs.", hint="leave it out")
    return builder.network([n for n in outputs if isinstance(n, int)])


def _walk(builder: OnnxBuilder, nodes: Any, opset: int, path: Path) -> None:
    import onnx

    for i, given in enumerate(nodes):
        name = given.name or (given.output[0] if given.output else f"node {i}")
        if given.op_type == "Constant":
            builder.values[given.output[0]] = _constant(given, name, path)
            continue
        kind = given.op_type if given.domain in ("", "ai.onnx") else f"{given.domain}.{given.op_type}"
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in given.attribute}
        node = OnnxNode(builder, kind, name, tuple(given.input), tuple(given.output), attributes, opset)
        if kind == "If":
            chosen = attributes["then_branch" if bool(node.constant(0)) else "else_branch"]
            for initializer in chosen.initializer:
                builder.values[initializer.name] = _initializer(initializer, path)
            _walk(builder, chosen.node, opset, path)
            builder.values.update(
                {o: builder.value(node, v.name) for o, v in zip(given.output, chosen.output, strict=True)}
            )
            continue
        if kind not in LOWERINGS:
            raise node.error(
                "is of an operator that is not read from ONNX files",
                "a model without it; or the model in PyTorch, with a function for that part",
            )
        try:
            LOWERINGS[kind](node)
        except (KeyError, IndexError, TypeError, RuntimeError, ValueError) as error:
            if isinstance(error, ModelError):
                raise
            raise ModelError(f"{node} has attributes or operands that do not fit: {error}.", hint=DAMAGED) from error


def _constant(given: Any, name: str, path: Path) -> torch.Tensor:
    import onnx

    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in given.attribute}
    for key, value in attributes.items():
        if key == "value":
            return _initializer(value, path)
        if key in ("value_float", "value_floats"):
            return torch.tensor(value, dtype=torch.float32)
        if key in ("value_int", "value_ints"):
            return torch.tensor(value, dtype=torch.int64)
    raise UnsupportedError(f"Node `{name}` (Constant) holds {', '.join(attributes)}.", hint="numbers")


def _initializer(given: Any, path: Path) -> torch.Tensor:
    import onnx
    from onnx import numpy_helper

    if given.data_location == onnx.TensorProto.EXTERNAL:
        raise ModelError(
            f"The weights of `{given.name}` of {path} are in another file.",
            hint=f"onnx.save(onnx.load('{path.name}'), 'whole.onnx'), which puts them inside",
        )
    try:
        data = numpy_helper.to_array(given)
    except Exception as error:
        raise ModelError(f"The constant `{given.name}` of {path} is damaged.", hint=DAMAGED) from error
    if data.dtype.kind not in "fiub":
        raise UnsupportedError(f"The constant `{given.name}` of {path} is of {data.dtype}.", hint="numbers")
    return torch.from_numpy(np.array(data, np.float32 if data.dtype.kind == "f" else data.dtype))


def _inputs(builder: OnnxBuilder, given: Sequence[Any], shapes: Shapes, path: Path) -> None:
    names = [i.name for i in given]
    if not isinstance(shapes, Mapping):
        if len(shapes) not in (0, len(given)):
            raise ModelError(
                f"{path} has {len(given)} inputs ({', '.join(names)}), and {len(shapes)} shapes are given.",
                hint="a shape for each",
            )
        shapes = dict(zip(names, shapes, strict=False))
    if unknown := [name for name in shapes if name not in names]:
        raise ModelError(f"{path} has no input `{unknown[0]}`.", hint=f"one of {', '.join(names)}")
    named: dict[str, int] = {}  # sizes by their name in the file, which several inputs may share
    for one in given:
        dimensions = one.type.tensor_type.shape.dim
        batch = [1 if i == 0 else None for i in range(len(dimensions))]
        sizes = zip(dimensions, shapes.get(one.name) or batch, strict=False)
        named.update({d.dim_param: size for d, size in sizes if d.dim_param and size is not None})
    for one in given:
        builder.values[one.name] = builder.input(one.name, _sizes(one, shapes, named, path), _input_type(one, path))


def _sizes(given: Any, shapes: Mapping[str, Sequence[int]], named: Mapping[str, int], path: Path) -> list[int]:
    """Return the shape of an input; the first size that a file leaves open is the batch size, 1."""
    dimensions = given.type.tensor_type.shape.dim
    declared = [d.dim_value if d.dim_value > 0 else None for d in dimensions]
    usual = [named.get(d.dim_param, 1 if i == 0 else None) for i, d in enumerate(dimensions)]
    known = [n if n is not None else u for n, u in zip(declared, usual, strict=True)]
    wanted: list[int | None] = list(shapes.get(given.name, ())) or known
    if len(wanted) != len(declared) or any(n not in (w, None) for n, w in zip(declared, wanted, strict=True)):
        raise ModelError(
            f"The input `{given.name}` of {path} cannot have the shape {wanted}; it is {declared} there.",
            hint="sizes where the file has None",
        )
    for dimension, size, declares in zip(count(), wanted, dimensions):
        if size is None:
            name = f" ({declares.dim_param})" if declares.dim_param else ""
            example = "x".join(str(n or 64) for n in wanted)
            raise ModelError(
                f"Dimension {dimension} of the input `{given.name}` of {path} is open{name}, and a program has fixed "
                "sizes.",
                hint=f"example inputs of the right shape; on the command line {path.name}:{given.name}={example}",
            )
    return [n for n in wanted if n is not None]


def _input_type(given: Any, path: Path) -> torch.dtype:
    import onnx

    kinds, number = onnx.TensorProto, given.type.tensor_type.elem_type
    floats = (kinds.FLOAT, kinds.FLOAT16, kinds.DOUBLE)
    dtype = {kinds.INT32: torch.int32, kinds.INT64: torch.int64, kinds.BOOL: torch.bool}.get(number)
    if dtype is None and number not in floats:
        name = kinds.DataType.Name(number)
        raise UnsupportedError(f"The input `{given.name}` of {path} is {name}.", hint="float32 inputs")
    return dtype or torch.float32
