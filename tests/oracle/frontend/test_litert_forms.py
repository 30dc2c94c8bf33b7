"""LiteRT files whose weights are stored in sparse form, and MediaPipe's transposed convolution."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ai_edge_litert import schema_py_generated as schema
from tests.oracle.frontend.litert_files import FileWriter
from tests.oracle.frontend.test_litert_files import refused, small

from micronpu.base.errors import ModelError
from micronpu.emit.litert import pack
from micronpu.frontend.model_files import read_model
from micronpu.frontend.model_files.litert import parse

DENSE, CSR = schema.DimensionType.DENSE, schema.DimensionType.SPARSE_CSR


def vector(values: Any) -> Any:
    made = schema.Int32VectorT()
    made.values = np.asarray(values, np.int32)
    return made


def level(size: int = 0, ends: Any = None, indices: Any = None) -> Any:
    made = schema.DimensionMetadataT()
    made.format, made.denseSize = (DENSE, size) if ends is None else (CSR, 0)
    if ends is not None:
        made.arraySegmentsType = made.arrayIndicesType = schema.SparseIndexVector.Int32Vector
        made.arraySegments, made.arrayIndices = vector(ends), vector(indices)
    return made


def sparse(values: np.ndarray, block: int) -> tuple[Any, np.ndarray]:
    """Return the description of the nonzero blocks of channels of weights [O, H, W, I], and their values."""
    rows = values.reshape(-1, values.shape[-1] // block, block)
    used = rows.any(axis=-1)
    ends, (_, indices) = np.cumsum([0, *used.sum(axis=1)]), np.nonzero(used)
    made = schema.SparsityParametersT()
    made.traversalOrder = np.arange(4 + (block > 1), dtype=np.int32)
    made.dimMetadata = [*map(level, values.shape[:3]), level(ends=ends, indices=indices)]
    if block > 1:
        made.blockMap = np.array([3], np.int32)
        made.dimMetadata.append(level(block))
    return made, rows[used].reshape(-1)


@pytest.mark.parametrize("block", [1, 3])
def test_sparse_weights_are_read(block: int):
    model = small()
    given = model.subgraphs[0].tensors[model.subgraphs[0].operators[0].inputs[1]]
    values = np.random.default_rng(0).integers(-127, 128, tuple(given.shape)).astype(np.int8)
    values *= np.random.default_rng(1).random((*values.shape[:3], 1)) < 0.4
    values[0, 0, 0, :] = 5
    given.sparsity, stored = sparse(values, block)
    model.buffers[given.buffer].data = stored.view(np.uint8)
    (read,) = (t for t in parse(pack(model)).tensors if t.index == model.subgraphs[0].operators[0].inputs[1])
    assert read.data is not None and len(stored) < values.size and np.array_equal(read.data, values)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_integer_weights_without_a_scale_are_refused_by_name(dtype: str, tmp_path: Path):
    file, scale = FileWriter(), None if dtype == "float32" else 0.1
    x, weights = file.tensor((1, 8), dtype, scale), file.constant(np.ones((5, 8), np.int8))
    y = file.add("FULLY_CONNECTED", [x, weights], [file.tensor((1, 5), dtype, scale)], "FullyConnectedOptions")
    path = tmp_path / "m.tflite"
    path.write_bytes(file.data([x], [y]))
    with pytest.raises(ModelError, match=r"FULLY_CONNECTED.* reads `t1`, which is INT8 without a scale"):
        read_model(path)


def test_damaged_sparse_weights_are_refused():
    def damage(change: Any) -> Any:
        def apply(model: Any, graph: Any) -> None:
            given = graph.tensors[graph.operators[0].inputs[1]]
            given.sparsity, stored = sparse(np.ones(tuple(given.shape), np.int8), 3)
            model.buffers[given.buffer].data = stored.view(np.uint8)
            change(given.sparsity)

        return apply

    def set_level(number: int, **fields: Any) -> Any:
        return lambda sparsity: [setattr(sparsity.dimMetadata[number], *field) for field in fields.items()]

    changes = [
        lambda sparsity: setattr(sparsity, "traversalOrder", np.array([0, 1, 2, 2, 4], np.int32)),
        lambda sparsity: setattr(sparsity, "blockMap", np.array([7], np.int32)),
        lambda sparsity: sparsity.dimMetadata.pop(),
        set_level(0, denseSize=1 << 30),
        set_level(0, denseSize=-1),
        set_level(3, arrayIndices=vector(np.full(72, 5))),
        set_level(3, arraySegments=vector(np.arange(70))),
        set_level(3, arraySegments=vector([0, 2, 1, *range(3, 73)])),
        set_level(3, arrayIndices=None),
    ]
    for change in changes:
        refused(damage(change), "Tensor .* in a sparse form that does not fit it")


def transposed(padding: int, size: tuple[int, int], stride: tuple[int, int]) -> Any:
    """A file with one transposed convolution of 3 to 8 channels in float, as MediaPipe writes it."""
    model = small()
    graph = model.subgraphs[0]
    graph.operators, code = graph.operators[:1], model.operatorCodes[graph.operators[0].opcodeIndex]
    (operator,) = graph.operators
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.CUSTOM
    code.customCode, operator.builtinOptions = b"Convolution2DTransposeBias", None
    operator.builtinOptionsType = schema.BuiltinOptions.NONE
    operator.customOptions = np.array([padding, stride[1], stride[0]], np.int32).view(np.uint8)
    for tensor in graph.tensors:
        tensor.quantization, tensor.type = None, schema.TensorType.FLOAT32
        if (data := model.buffers[tensor.buffer].data) is not None:
            values = np.random.default_rng(len(data)).normal(size=int(np.prod(tensor.shape)))
            model.buffers[tensor.buffer].data = values.astype(np.float32).view(np.uint8)
    graph.outputs, made = operator.outputs, graph.tensors[operator.outputs[0]]
    made.shape = np.array([1, *size, 8], np.int32)
    return model


@pytest.mark.parametrize(
    ("padding", "size", "stride"), [(1, (12, 12), (2, 2)), (2, (13, 8), (2, 1)), (1, (6, 18), (1, 3))]
)
def test_transposed_convolution_of_mediapipe(
    padding: int, size: tuple[int, int], stride: tuple[int, int], tmp_path: Path
):
    """LiteRT's own interpreter has it only with XNNPACK, so the definition is computed here."""
    path, model = tmp_path / "net.tflite", transposed(padding, size, stride)
    path.write_bytes(pack(model))
    weights, bias = (t.data for t in parse(pack(model)).operators[0].inputs[1:] if t is not None)
    assert weights is not None and bias is not None
    read = read_model(path)
    x = read.examples[0][0].numpy()
    whole = np.zeros((5 * stride[0] + 3, 5 * stride[1] + 3, 8))
    for i, j in np.ndindex(6, 6):
        whole[i * stride[0] :, j * stride[1] :][:3, :3] += np.einsum("c,ohwc->hwo", x[i, j], weights)
    first = [(n - wanted) // 2 for n, wanted in zip(whole.shape, size, strict=False)]
    expected = whole[first[0] :, first[1] :][: size[0], : size[1]] + bias
    with torch.no_grad():
        assert np.allclose(read.module(*read.examples)[0].numpy(), expected, atol=1e-4)


def test_options_of_the_transposed_convolution_are_checked():
    for options, match in ((np.zeros(12, np.uint8), "strides"), (np.zeros(3, np.uint8), "options")):

        def change(model: Any, graph: Any, options: Any = options) -> None:
            made = transposed(1, (12, 12), (2, 2))
            made.subgraphs[0].operators[0].customOptions = options
            vars(model).update(vars(made))

        refused(change, match)
