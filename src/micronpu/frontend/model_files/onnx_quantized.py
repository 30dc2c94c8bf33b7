"""Lowerings of ONNX's quantization.

QuantizeLinear becomes an int8 or int16 tensor, and DequantizeLinear its floats, each with its own qparams. Operators
that only move elements are computed in floats between both, and any other reader reads the file's integers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from micronpu.frontend.model_files.network import Function, Rounding
from micronpu.frontend.model_files.onnx_nodes import DTYPES, LOWERINGS, Integers, Lowering, OnnxNode, Qparams, lowering
from micronpu.frontend.model_files.onnx_operators import padded, window
from micronpu.frontend.program import BYTE_SHIFT

_MOVES = (
    "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GlobalMaxPool", "Identity", "MaxPool", "Reshape", "Slice",
    "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze",
)  # fmt: skip
"""Operators whose results consist of elements of the first operand, or of all operands of Concat."""
_INT8 = (-128, 127)


def _qparams(node: OnnxNode, scale: int, zero: int, dtype: torch.dtype | None = None) -> Qparams | None:
    """Return per-tensor qparams of two operands; None if they are computed, several, or of another dtype."""
    if any(node.has(i) and not isinstance(node.operand(i), torch.Tensor) for i in (scale, zero)):
        return None
    factor, point = node.required(scale), node.constant(zero)
    if factor.numel() != 1 or (point is not None and point.numel() != 1):
        return None
    kind = point.dtype if point is not None else dtype or torch.uint8
    number = 0 if point is None else int(point.reshape(-1)[0])
    if kind is torch.uint8:
        return Qparams(Rounding(float(factor), number - BYTE_SHIFT, torch.int8), True)
    return Qparams(Rounding(float(factor), number, kind), False) if kind in (torch.int8, torch.int16) else None


def _along(node: OnnxNode, i: int) -> torch.Tensor | int:
    """Return an operand that has one number, or one for each index of the axis, ready to broadcast."""
    value, rank = node.operand(i), node.meta(0).dim()
    size = node.meta(i).numel()
    if size == 1 or not isinstance(value, torch.Tensor):
        return value
    shape = [1] * rank
    shape[node.axis()] = size
    return value.reshape(shape)


@lowering("QuantizeLinear")
def _quantize(node: OnnxNode) -> None:
    node.ignores("saturate", "precision", "axis")  # about floats of 8 bits, the precision of the division; see _along
    kind = node.attribute("output_dtype")
    dtype = DTYPES.get(kind) if kind else None
    if kind and dtype is None:
        raise node.error(f"quantizes to the element type {kind}", "int8, uint8 or int16")
    qparams = _qparams(node, 1, 2, dtype)
    if qparams is not None and not isinstance(x := node.operand(0), torch.Tensor):
        _store(node, node.outputs[0], x, qparams)
        return
    point = node.meta(2).dtype if node.has(2) else dtype or torch.uint8
    if point not in (torch.int8, torch.uint8, torch.int16):
        raise node.error(f"quantizes to {str(point).removeprefix('torch.')}", "int8, uint8 or int16")
    limits = torch.iinfo(point)
    zero = [_along(node, 2)] if node.has(2) else []

    def quantize(x: torch.Tensor, s: torch.Tensor, z: torch.Tensor | None = None) -> torch.Tensor:
        made = torch.round(x / s) + (0 if z is None else z)
        return torch.clamp(made, limits.min, limits.max).to(point)

    node.emit(quantize, [node.operand(0), _along(node, 1), *zero])


def _store(node: OnnxNode, name: str, value: int, qparams: Qparams) -> None:
    """Quantize a tensor and note it as the result of this name."""
    (number,) = node.builder.add(node.name, qparams.integers, [value], ())
    node.builder.quantized[name] = Integers(number, qparams)
    if not qparams.is_bytes:
        node.builder.values[name] = number


def _real(node: OnnxNode, i: int, scale: int, zero: int) -> int | torch.Tensor:
    """Return the floats of an operand, given the operands with its scale and zero point."""
    stored, data = node.builder.quantized.get(node.inputs[i]), None
    if stored is None:
        data = node.operand(i)
    dtype = stored.qparams.rounding.dtype if stored is not None else node.meta(i).dtype
    node.has(i)
    if isinstance(data, torch.Tensor):
        return _real_constant(node, data, scale, zero)
    qparams = _qparams(node, scale, zero, torch.uint8 if stored and stored.qparams.is_bytes else dtype)
    if qparams is None:
        point = [_along(node, zero)] if node.has(zero) else []

        def dequantize(x: torch.Tensor, s: torch.Tensor, z: torch.Tensor | None = None) -> torch.Tensor:
            return (x.to(torch.float32) - (0 if z is None else z.to(torch.float32))) * s

        return node.builder.add(node.name, dequantize, [node.operand(i), _along(node, scale), *point], ())[0]
    if stored is not None:
        number = stored.number
    elif qparams.is_bytes:
        assert isinstance(data, int)
        (number,) = node.builder.add(node.inputs[i], qparams.from_bytes, [data], ())
    else:
        assert isinstance(data, int)
        number = data
    return node.builder.add(node.name, qparams.rounding.dequantize, [number], ())[0]


def _real_constant(node: OnnxNode, integers: torch.Tensor, scale: int, zero: int) -> int | torch.Tensor:
    """Return the floats of a constant: symmetric int8 if its integers fit without the zero point."""
    scales, points = node.required(scale), node.constant(zero)
    count = max(scales.numel(), 1 if points is None else points.numel())
    axis = node.axis() if count > 1 else 0
    shape = [1] * integers.dim()
    if count > 1:
        shape[axis] = count
    shifted = integers.to(torch.int64)
    if points is not None:
        shifted = shifted - points.to(torch.int64).reshape(shape if points.numel() > 1 else [])
    fits = not shifted.numel() or (_INT8[0] <= int(shifted.min()) and int(shifted.max()) <= _INT8[1])
    if fits or integers.dtype not in (torch.int8, torch.uint8):
        made = shifted.to(torch.int8 if fits and integers.dtype is torch.uint8 else integers.dtype)
        return node.builder.dequantized(node.name, made, scales.reshape(-1).to(torch.float64), axis)
    qparams = _qparams(node, scale, zero, integers.dtype)
    if qparams is None:
        raise node.error("has weights with zero points for each channel", "symmetric weights")
    moved = (integers.to(torch.int16) - BYTE_SHIFT).to(torch.int8) if qparams.is_bytes else integers
    return node.builder.add(node.name, qparams.rounding.dequantize, [moved], ())[0]


@lowering("DequantizeLinear")
def _dequantize(node: OnnxNode) -> None:
    node.ignores("axis")  # see _along
    node.define(_real(node, 0, 1, 2))


def moving(function: Lowering) -> Lowering:
    """Return a lowering that moves elements: of a result of QuantizeLinear, in floats that are quantized again."""

    def lower(node: OnnxNode) -> None:
        stored = [node.builder.quantized.get(name) for name in node.inputs]
        own = stored if node.kind == "Concat" else stored[:1]
        if not own or own[0] is None or any(s is None or s.qparams != own[0].qparams for s in own):
            function(node)
            return
        builder, qparams = node.builder, own[0].qparams
        names, moved = list(node.inputs), [f"{name} " for name in node.outputs]
        for i, integers in enumerate(own):
            assert integers is not None
            names[i] += " "  # no name of the file
            if names[i] not in builder.values:
                builder.values[names[i]] = builder.add(node.name, qparams.rounding.dequantize, [integers.number], ())[0]
        inner = OnnxNode(builder, node.kind, node.name, tuple(names), tuple(moved), node.given, node.opset, node.seen)
        function(inner)
        for name, made in zip(node.outputs, moved, strict=True):
            if isinstance(value := builder.values.get(made), int):
                _store(node, name, value, qparams)

    return lower


def keep_integers() -> None:
    """Let operators that move elements keep the integers of quantized operands."""
    for kind in _MOVES:
        LOWERINGS[kind] = moving(LOWERINGS[kind])


# ---------------------------------------------------------------- operators of integers


def _finish(node: OnnxNode, function: Callable[..., torch.Tensor], operands: list[int | torch.Tensor], y: int) -> None:
    """Compute in floats, and quantize the result by the operands y and y + 1."""
    qparams = _qparams(node, y, y + 1)
    if qparams is None:
        raise node.error("has a result with several scales", "one scale for the result")
    (number,) = node.builder.add(node.name, function, operands, ())
    _store(node, node.outputs[0], number, qparams)


@lowering("QLinearMatMul")
def _matmul(node: OnnxNode) -> None:
    _finish(node, torch.matmul, [_real(node, 0, 1, 2), _real(node, 3, 4, 5)], 6)


@lowering("QLinearConv")
def _convolution(node: OnnxNode) -> None:
    kernel = list(node.meta(3).shape[2:])
    stride, dilation, pads = window(node, kernel)
    node.ignores("kernel_shape")
    x, w = _real(node, 0, 1, 2), _real_weights(node)
    operands = [x, w]
    if node.has(8):
        scales = node.required(1).double().reshape(-1) * node.required(4).double().reshape(-1)
        operands.append(node.builder.dequantized(node.name, node.required(8), scales, 0))
    function: Function = (functional.conv1d, functional.conv2d, functional.conv3d)[len(kernel) - 1]
    group, equal = node.attribute("group"), all(a == b for a, b in pads)
    before = [a for a, _ in pads] if equal else 0

    def convolution(x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        x = x if equal else padded(x, pads)
        made: torch.Tensor = function(x, *others, stride=stride, padding=before, dilation=dilation, groups=group)
        return made

    _finish(node, convolution, operands, 6)


def _real_weights(node: OnnxNode) -> int | torch.Tensor:
    integers, scales, points = node.required(3), node.required(4), node.constant(5)
    inner = OnnxNode(node.builder, "DequantizeLinear", f"{node.name} weights", node.inputs[3:6], (), {}, node.opset)
    if scales.numel() == 1 and (points is None or points.numel() == 1):
        return _real_constant(inner, integers, 1, 2)
    shifted = integers.to(torch.int64) - (
        0 if points is None else points.to(torch.int64).reshape(-1, *[1] * (integers.dim() - 1))
    )
    if int(shifted.min()) < _INT8[0] or int(shifted.max()) > _INT8[1]:
        raise node.error("has weights with zero points for each channel", "symmetric weights")
    return node.builder.dequantized(inner.name, shifted.to(torch.int8), scales.reshape(-1).double(), 0)


@lowering(
    *("MatMulInteger", "ConvInteger", "DynamicQuantizeLinear"),
    *(f"com.microsoft.{kind}" for kind in ("DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "MatMulIntegerToFloat")),
)
def _dynamic(node: OnnxNode) -> None:
    raise node.error(
        "chooses scales from each input, and an NPU has fixed ones",
        "the float model, which micronpu quantizes with calibration data",
    )
