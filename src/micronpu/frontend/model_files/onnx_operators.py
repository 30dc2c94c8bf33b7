"""Lowerings of ONNX operators: functions of PyTorch with the same semantics.

Semantics: https://onnx.ai/onnx/operators/.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from micronpu.frontend.model_files.network import Function, OnnxNode
from micronpu.frontend.model_files.onnx_constants import constant_of
from micronpu.frontend.run import truncated_quotient

Lowering = Callable[[OnnxNode], None]
LOWERINGS: dict[str, Lowering] = {}
"""Lowerings by the name of the operator."""
_DTYPES = {
    1: torch.float32, 2: torch.uint8, 3: torch.int8, 5: torch.int16, 6: torch.int32, 7: torch.int64, 9: torch.bool,
    10: torch.float32, 11: torch.float32, 16: torch.float32,
}  # fmt: skip
"""Dtypes by the number in ONNX's `TensorProto.DataType`; all floats are computed as float32."""


def lowering(*kinds: str) -> Callable[[Lowering], Lowering]:
    """Register the lowering of operators."""

    def register(function: Lowering) -> Lowering:
        LOWERINGS.update(dict.fromkeys(kinds, function))
        return function

    return register


# ---------------------------------------------------------------- elementwise


def _integer_division(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    whole = not a.is_floating_point() and not b.is_floating_point()
    return truncated_quotient(a, b) if whole else torch.div(a, b)


def _folded_over(function: Function) -> Function:
    def fold(*given: torch.Tensor) -> torch.Tensor:
        result = given[0]
        for value in given[1:]:
            result = function(result, value)
        return result

    return fold


_PLAIN: dict[str, Function] = {
    "Abs": torch.abs, "Acos": torch.acos, "Acosh": torch.acosh, "Add": torch.add, "And": torch.logical_and,
    "Asin": torch.asin, "Asinh": torch.asinh, "Atan": torch.atan, "Atanh": torch.atanh, "Ceil": torch.ceil,
    "Cos": torch.cos, "Cosh": torch.cosh, "Equal": torch.eq, "Erf": torch.erf,
    "Exp": torch.exp, "Floor": torch.floor, "Greater": torch.gt, "GreaterOrEqual": torch.ge,
    "HardSwish": functional.hardswish, "Identity": lambda x: x, "Less": torch.lt, "LessOrEqual": torch.le,
    "Log": torch.log, "MatMul": torch.matmul, "Max": _folded_over(torch.maximum), "Min": _folded_over(torch.minimum),
    "Mish": functional.mish, "Mul": torch.mul, "Neg": torch.neg, "Not": torch.logical_not, "Or": torch.logical_or,
    "Pow": torch.pow, "PRelu": lambda x, s: torch.where(x >= 0, x, x * s) if s.numel() > 1 and s.dim() < 2 else
    functional.prelu(x, s.reshape(-1)),
    "Reciprocal": torch.reciprocal, "Relu": torch.relu, "Round": torch.round, "Sigmoid": torch.sigmoid,
    "Sign": torch.sign, "Sin": torch.sin, "Sinh": torch.sinh, "Softplus": functional.softplus,
    "Softsign": functional.softsign, "Sqrt": torch.sqrt, "Sub": torch.sub, "Sum": _folded_over(torch.add),
    "Tan": torch.tan, "Tanh": torch.tanh, "Where": torch.where, "Xor": torch.logical_xor,
    "Mean": lambda *given: _folded_over(torch.add)(*given) / len(given),
}  # fmt: skip
for _kind, _function in _PLAIN.items():
    LOWERINGS[_kind] = partial(OnnxNode.emit, function=_function)


def _with_attributes(function: Callable[..., Function], **defaults: Any) -> Lowering:
    """Return a lowering with a function that takes attributes."""

    def lower(node: OnnxNode) -> None:
        node.emit(function(**{name: node.attributes.get(name, value) for name, value in defaults.items()}))

    return lower


LOWERINGS |= {
    "LeakyRelu": _with_attributes(lambda alpha: partial(functional.leaky_relu, negative_slope=alpha), alpha=0.01),
    "Elu": _with_attributes(lambda alpha: partial(functional.elu, alpha=alpha), alpha=1.0),
    "Celu": _with_attributes(lambda alpha: partial(functional.celu, alpha=alpha), alpha=1.0),
    "Selu": _with_attributes(lambda: functional.selu),
    "ThresholdedRelu": _with_attributes(lambda alpha: lambda x: functional.threshold(x, alpha, 0.0), alpha=1.0),
    "HardSigmoid": _with_attributes(
        lambda alpha, beta: (
            functional.hardsigmoid
            if math.isclose(alpha, 1 / 6, rel_tol=1e-5) and beta == 0.5
            else lambda x: torch.clamp(x * alpha + beta, 0, 1)
        ),
        alpha=0.2,
        beta=0.5,
    ),
    "Gelu": _with_attributes(
        lambda approximate: partial(functional.gelu, approximate=approximate.decode()), approximate=b"none"
    ),
    "Softmax": lambda node: _softmax(node, torch.softmax),
    "LogSoftmax": lambda node: _softmax(node, torch.log_softmax),
    "CumSum": lambda node: _cumulative_sum(node),
    "Dropout": lambda node: node.emit(lambda x: x, [node.operand(0)]),
    "BatchNormalization": _with_attributes(
        lambda epsilon: lambda x, s, b, m, v: functional.batch_norm(x, m, v, s, b, False, 0.0, epsilon), epsilon=1e-5
    ),
    "InstanceNormalization": _with_attributes(
        lambda epsilon: lambda x, s, b: functional.instance_norm(x, None, None, s, b, True, 0.0, epsilon), epsilon=1e-5
    ),
    "LayerNormalization": _with_attributes(
        lambda axis, epsilon: lambda x, s, b=None: functional.layer_norm(x, x.shape[axis:], s, b, epsilon),
        axis=-1,
        epsilon=1e-5,
    ),
    "GroupNormalization": _with_attributes(
        lambda num_groups, epsilon: lambda x, s, b: functional.group_norm(x, num_groups, s, b, epsilon),
        num_groups=None,
        epsilon=1e-5,
    ),
    "Concat": _with_attributes(lambda axis: lambda *given: torch.cat(given, axis), axis=None),
    "GatherElements": _with_attributes(lambda axis: lambda x, i: torch.gather(x, axis, i), axis=0),
    "Einsum": _with_attributes(lambda equation: lambda *given: torch.einsum(equation.decode(), *given), equation=b""),
}


@lowering("Div")
def _divided(node: OnnxNode) -> None:
    a, b = node.operand(0), node.operand(1)
    if not node.meta(0).is_floating_point() and not node.meta(1).is_floating_point():
        # The processor ends the process over x / 0, and over the smallest integer / -1.
        smallest = isinstance(a, int) or bool(torch.eq(a, torch.iinfo(a.dtype).min).any())
        if isinstance(b, int) or bool(torch.eq(b, 0).any()) or (smallest and bool(torch.eq(b, -1).any())):
            raise node.error("divides integers by 0, by -1, or by what is not known", "floats, or another divisor")
    node.emit(_integer_division)


def _softmax(node: OnnxNode, function: Function) -> None:
    rank = node.meta(0).dim()
    axis = node.attributes.get("axis", -1 if node.opset >= 13 else 1) % rank
    if node.opset < 13 and axis != rank - 1:  # over all axes from this one on

        def flat(x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = function(x.flatten(axis), dim=axis).reshape(x.shape)
            return result

        node.emit(flat)
        return
    node.emit(partial(function, dim=axis))


def _cumulative_sum(node: OnnxNode) -> None:
    (axis,) = node.integers(1) or [0]
    if node.attributes.get("exclusive") or node.attributes.get("reverse"):
        raise node.error("is exclusive or in reverse", "a plain cumulative sum")
    node.emit(partial(torch.cumsum, dim=axis), [node.operand(0)])


@lowering("Clip")
def _clip(node: OnnxNode) -> None:
    given = {at: node.operand(i) for i, at in ((1, torch.maximum), (2, torch.minimum)) if node.has(i)}
    if all(isinstance(bound, torch.Tensor) for bound in given.values()):
        low, high = (float(given[at]) if at in given else None for at in (torch.maximum, torch.minimum))
        clamp = functional.relu6 if (low, high) == (0.0, 6.0) else partial(torch.clamp, min=low, max=high)
        node.emit(clamp, [node.operand(0)])
    else:  # computed, such as 80 dB below the largest value of a spectrum

        def clipped(x: torch.Tensor, *bounds: torch.Tensor) -> torch.Tensor:
            for at, bound in zip(given, bounds, strict=True):
                x = at(x, bound)
            return x

        node.emit(clipped, [node.operand(0), *given.values()])


@lowering("Cast", "CastLike")
def _cast(node: OnnxNode) -> None:
    dtype = node.meta(1).dtype if node.kind == "CastLike" else _DTYPES.get(node.attributes["to"])
    if dtype is None:
        raise node.error(f"casts to the type {node.attributes['to']}", "float32, int32, int64 or bool")
    node.emit(lambda x: x.to(dtype), [node.operand(0)])


# ---------------------------------------------------------------- convolution, linear, normalization


def _window(node: OnnxNode, kernel: Sequence[int]) -> tuple[list[int], list[int], list[tuple[int, int]]]:
    """Return strides, dilations, and (before, after) paddings of each axis of an image."""
    count, size = len(kernel), node.meta(0).shape[2:]
    stride, dilation = (list(node.attributes.get(n, [1] * count)) for n in ("strides", "dilations"))
    how = node.attributes.get("auto_pad", b"NOTSET").decode()
    if how in ("NOTSET", "VALID"):
        flat = list(node.attributes.get("pads", [0] * 2 * count)) if how == "NOTSET" else [0] * 2 * count
        return stride, dilation, list(zip(flat[:count], flat[count:], strict=True))
    pads = []
    for n, k, s, d in zip(size, kernel, stride, dilation, strict=True):
        total = max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
        pads.append((total // 2, total - total // 2) if how == "SAME_UPPER" else (total - total // 2, total // 2))
    return stride, dilation, pads


def _padded(x: torch.Tensor, pads: Sequence[tuple[int, int]], value: float = 0.0) -> torch.Tensor:
    return functional.pad(x, [n for pair in reversed(pads) for n in pair], value=value)


@lowering("Conv")
def _convolution(node: OnnxNode) -> None:
    weight = node.meta(1)
    kernel = list(weight.shape[2:])
    if not 1 <= len(kernel) <= 3:
        raise node.error(f"has a kernel of {len(kernel)} axes", "one to three")
    stride, dilation, pads = _window(node, kernel)
    function = (functional.conv1d, functional.conv2d, functional.conv3d)[len(kernel) - 1]
    whole = partial(function, stride=stride, dilation=dilation, groups=node.attributes.get("group", 1))
    if all(a == b for a, b in pads):
        node.emit(partial(whole, padding=[a for a, _ in pads]))
    else:
        node.emit(lambda x, *others: whole(_padded(x, pads), *others))


@lowering("ConvTranspose")
def _transposed(node: OnnxNode) -> None:
    kernel = list(node.meta(1).shape[2:])
    if len(kernel) > 2:
        raise node.error(f"has a kernel of {len(kernel)} axes", "one or two")
    if node.attributes.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID") or "output_shape" in node.attributes:
        raise node.error("has auto_pad or output_shape", "pads and output_padding as numbers")
    stride, dilation, pads = _window(node, kernel)
    extra = list(node.attributes.get("output_padding", [0] * len(kernel)))
    function = (functional.conv_transpose1d, functional.conv_transpose2d)[len(kernel) - 1]
    before = [a for a, _ in pads]
    # PyTorch crops both ends equally; more cropping at the end means a smaller output padding.
    extra = [e + a - b for e, (a, b) in zip(extra, pads, strict=True)]
    if any(e < 0 for e in extra):
        raise node.error("cuts more at the end than its stride", "equal pads")
    groups = node.attributes.get("group", 1)
    node.emit(partial(function, stride=stride, padding=before, output_padding=extra, groups=groups, dilation=dilation))


@lowering("Gemm")
def _gemm(node: OnnxNode) -> None:
    alpha, beta = (node.attributes.get(n, 1.0) for n in ("alpha", "beta"))
    turned = bool(node.attributes.get("transB", 0))
    if node.attributes.get("transA", 0):
        raise node.error("transposes its first operand", "transA=0")

    def gemm(x: torch.Tensor, w: torch.Tensor, c: torch.Tensor | None = None) -> torch.Tensor:
        w = (w if turned else w.T) * alpha if alpha != 1.0 else (w if turned else w.T)
        bias = c if c is None or beta == 1.0 else c * beta
        if bias is not None and (bias.dim() != 1 or bias.shape[0] != w.shape[0]):
            return functional.linear(x, w) + bias
        return functional.linear(x, w, bias)

    node.emit(gemm)


# ---------------------------------------------------------------- pooling, reductions


@lowering("MaxPool", "AveragePool")
def _pool(node: OnnxNode) -> None:
    kernel = list(node.attributes["kernel_shape"])
    if len(kernel) > 2 or len(node.outputs) > 1:
        raise node.error("pools volumes, or gives indices", "pooling of images without indices")
    stride, dilation, pads = _window(node, kernel)
    ceil = bool(node.attributes.get("ceil_mode", 0))
    counts = bool(node.attributes.get("count_include_pad", 0))
    symmetric = all(a == b and a <= k // 2 for (a, b), k in zip(pads, kernel, strict=True))
    before = [a for a, _ in pads] if symmetric else [0] * len(kernel)
    if node.kind == "MaxPool":
        pool = (functional.max_pool1d, functional.max_pool2d)[len(kernel) - 1]
        whole = partial(pool, kernel_size=kernel, stride=stride, padding=before, dilation=dilation, ceil_mode=ceil)
        node.emit(whole if symmetric else lambda x: whole(_padded(x, pads, -math.inf)))
        return
    average = (functional.avg_pool1d, functional.avg_pool2d)[len(kernel) - 1]
    if set(dilation) != {1}:
        raise node.error("is dilated", "an average of neighbours")
    whole = partial(
        average, kernel_size=kernel, stride=stride, padding=before, ceil_mode=ceil, count_include_pad=counts
    )
    if symmetric:
        node.emit(whole)
    elif counts:
        node.emit(lambda x: whole(_padded(x, pads)))
    else:  # each mean is over existing elements only
        node.emit(lambda x: whole(_padded(x, pads)) / whole(_padded(x.new_ones((1, 1, *x.shape[2:])), pads)))


@lowering("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(node: OnnxNode) -> None:
    axes = list(range(2, node.meta(0).dim()))
    average = node.kind == "GlobalAveragePool"
    node.emit(lambda x: x.mean(axes, keepdim=True) if average else x.amax(axes, keepdim=True))


_REDUCTIONS: dict[str, Callable[[torch.Tensor, list[int], bool], torch.Tensor]] = {
    "ReduceMean": lambda x, axes, keeps: x.mean(axes, keepdim=keeps),
    "ReduceSum": lambda x, axes, keeps: x.sum(axes, keepdim=keeps),
    "ReduceMax": lambda x, axes, keeps: x.amax(axes, keepdim=keeps),
    "ReduceMin": lambda x, axes, keeps: x.amin(axes, keepdim=keeps),
    "ReduceL1": lambda x, axes, keeps: x.abs().sum(axes, keepdim=keeps),
    "ReduceL2": lambda x, axes, keeps: x.square().sum(axes, keepdim=keeps).sqrt(),
    "ReduceSumSquare": lambda x, axes, keeps: x.square().sum(axes, keepdim=keeps),
    "ReduceLogSumExp": lambda x, axes, keeps: torch.logsumexp(x, axes, keepdim=keeps),
    "ReduceProd": lambda x, axes, keeps: x.prod(axes[0], keepdim=keeps),
}


@lowering(*_REDUCTIONS)
def _reduce(node: OnnxNode) -> None:
    axes, rank = node.integers(1, "axes"), node.meta(0).dim()
    if not axes and node.attributes.get("noop_with_empty_axes", 0):
        node.emit(lambda x: x, [node.operand(0)])
        return
    every = list(range(rank)) if not axes else [a % rank for a in axes]
    if node.kind == "ReduceProd" and len(every) != 1:
        raise node.error("multiplies along several axes", "one axis at a time")
    function, keeps = _REDUCTIONS[node.kind], bool(node.attributes.get("keepdims", 1))
    node.emit(lambda x: function(x, every, keeps), [node.operand(0)])


@lowering("ArgMax", "ArgMin")
def _arg(node: OnnxNode) -> None:
    if node.attributes.get("select_last_index", 0):
        raise node.error("selects the last of equal elements", "select_last_index=0")
    axis, keeps = node.attributes.get("axis", 0), bool(node.attributes.get("keepdims", 1))
    function = torch.argmax if node.kind == "ArgMax" else torch.argmin
    node.emit(lambda x: function(x, dim=axis, keepdim=keeps))


# ---------------------------------------------------------------- movement


@lowering("Shape")
def _shape(node: OnnxNode) -> None:
    sizes = list(node.meta(0).shape)[node.attributes.get("start", 0) : node.attributes.get("end")]
    node.builder.values[node.outputs[0]] = torch.tensor(sizes, dtype=torch.int64)


@lowering("Size")
def _size(node: OnnxNode) -> None:
    node.builder.values[node.outputs[0]] = torch.tensor(node.meta(0).numel(), dtype=torch.int64)


@lowering("ConstantOfShape")
def _filled(node: OnnxNode) -> None:
    given, sizes, build = node.attributes.get("value"), node.integers(0) or [], node.builder
    value = torch.zeros(1) if given is None else constant_of(given, node.name, build.path, build.budget)
    build.check_size(node.name, math.prod(sizes), constant=True)
    node.builder.values[node.outputs[0]] = value.reshape(1).expand(tuple(sizes)).clone()


@lowering("Range")
def _range(node: OnnxNode) -> None:
    start, limit, step = (node.constant(i) for i in range(3))
    assert start is not None and limit is not None and step is not None
    node.builder.check_size(node.name, math.ceil((float(limit) - float(start)) / float(step)), constant=True)
    node.builder.values[node.outputs[0]] = torch.arange(start.item(), limit.item(), step.item(), dtype=start.dtype)


@lowering("Reshape")
def _reshape(node: OnnxNode) -> None:
    given, keeps = node.meta(0).shape, not node.attributes.get("allowzero", 0)
    sizes = [given[i] if n == 0 and keeps else n for i, n in enumerate(node.integers(1) or [])]
    node.emit(lambda x: x.reshape(sizes), [node.operand(0)])


@lowering("Flatten")
def _flatten(node: OnnxNode) -> None:
    rank = node.meta(0).dim()
    axis = node.attributes.get("axis", 1)
    rows = math.prod(node.meta(0).shape[: axis + rank if axis < 0 else axis])
    node.emit(lambda x: x.reshape(rows, -1))


@lowering("Transpose")
def _transpose(node: OnnxNode) -> None:
    axes = list(node.attributes.get("perm", reversed(range(node.meta(0).dim()))))
    node.emit(lambda x: x.permute(axes))


@lowering("Squeeze", "Unsqueeze")
def _squeeze(node: OnnxNode) -> None:
    axes, shape = node.integers(1, "axes"), list(node.meta(0).shape)
    if node.kind == "Squeeze":
        gone = [i for i, n in enumerate(shape) if n == 1] if axes is None else [a % len(shape) for a in axes]
        sizes = [n for i, n in enumerate(shape) if i not in gone]
    else:
        rank, sizes = len(shape) + len(axes or ()), shape
        for axis in sorted(a % rank for a in axes or ()):
            sizes.insert(axis, 1)
    node.emit(lambda x: x.reshape(sizes), [node.operand(0)])


@lowering("Split")
def _split(node: OnnxNode) -> None:
    axis = node.attributes.get("axis", 0)
    size = node.meta(0).shape[axis]
    sizes = node.integers(1, "split")
    if sizes is None:
        part = -(-size // len(node.outputs))
        sizes = [min(part, size - start) for start in range(0, size, part)]
    for name, start, length in zip(node.outputs, [sum(sizes[:i]) for i in range(len(sizes))], sizes, strict=True):
        # One step for each part, so that each may have its own quantization.
        narrow = partial(torch.narrow, dim=axis, start=start, length=length)
        OnnxNode(node.builder, node.kind, name, node.inputs, (name,), {}, node.opset).emit(narrow, [node.operand(0)])


@lowering("Slice")
def _slice(node: OnnxNode) -> None:
    starts, ends = node.integers(1) or [], node.integers(2) or []
    shape = node.meta(0).shape
    axes = node.integers(3) or list(range(len(starts)))
    steps = node.integers(4) or [1] * len(starts)
    cuts, turned = [slice(None)] * len(shape), []
    for start, end, axis, step in zip(starts, ends, (a % len(shape) for a in axes), steps, strict=True):
        first, last, by = slice(start, end, step).indices(shape[axis])
        if by > 0:
            cuts[axis] = slice(first, max(last, first), by)
            continue
        # PyTorch has no negative steps: take the elements in ascending order, and flip them.
        picked = range(first, last, by)
        cuts[axis] = slice(picked[-1], picked[0] + 1, -by) if picked else slice(0, 0)
        turned.append(axis)
    node.emit(lambda x: torch.flip(x[tuple(cuts)], turned) if turned else x[tuple(cuts)], [node.operand(0)])


@lowering("Gather")
def _gather(node: OnnxNode) -> None:
    axis, rank = node.attributes.get("axis", 0), node.meta(0).dim()
    axis, size = axis % rank, node.meta(0).shape[axis]
    where = node.operand(1)
    if isinstance(where, torch.Tensor):
        indices = (where + size * (where < 0)).to(torch.int64)
        if indices.dim() == 0:
            node.emit(partial(torch.select, dim=axis, index=int(indices)), [node.operand(0)])
            return
        where = indices

    def gather(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        if axis == 0 and rank == 2:
            return functional.embedding(i, x)
        made = torch.index_select(x, axis, i.reshape(-1))
        return made.reshape(*x.shape[:axis], *i.shape, *x.shape[axis + 1 :])

    node.emit(gather, [node.operand(0), where])


@lowering("Expand")
def _expand(node: OnnxNode) -> None:
    sizes = torch.broadcast_shapes(tuple(node.meta(0).shape), tuple(node.integers(1) or ()))
    node.emit(lambda x: x.expand(sizes), [node.operand(0)])


@lowering("Tile")
def _tile(node: OnnxNode) -> None:
    times = node.integers(1) or []
    node.emit(lambda x: x.repeat(times), [node.operand(0)])


@lowering("Pad")
def _pad(node: OnnxNode) -> None:
    mode = node.attributes.get("mode", b"constant").decode()
    flat, rank = node.integers(1, "pads") or [], node.meta(0).dim()
    axes = node.integers(3) or list(range(rank))
    pairs = [(0, 0)] * rank
    for i, axis in enumerate(axes):
        pairs[axis] = (flat[i], flat[i + len(axes)])
    while len(pairs) > 1 and mode != "constant" and pairs[0] == (0, 0) and len(pairs) > rank - 2:
        pairs = pairs[1:]
    if mode == "constant":
        fill = node.constant(2)
        node.emit(partial(_padded, pads=pairs, value=0.0 if fill is None else float(fill)), [node.operand(0)])
        return
    modes = {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}
    if mode not in modes:
        raise node.error(f"pads in the mode {mode}", f"one of constant, {', '.join(modes)}")
    ends = [n for pair in reversed(pairs) for n in pair]
    node.emit(lambda x: functional.pad(x, ends, mode=modes[mode]), [node.operand(0)])


@lowering("DepthToSpace", "SpaceToDepth")
def _depth_to_space(node: OnnxNode) -> None:
    size, (n, channels, rows, columns) = node.attributes["blocksize"], node.meta(0).shape
    if node.kind == "DepthToSpace" and node.attributes.get("mode", b"DCR") == b"CRD":
        node.emit(partial(functional.pixel_shuffle, upscale_factor=size))
        return
    if node.kind == "DepthToSpace":
        apart, turned = (n, size, size, channels // size**2, rows, columns), (0, 3, 4, 1, 5, 2)
        made = (n, channels // size**2, rows * size, columns * size)
    else:
        apart, turned = (n, channels, rows // size, size, columns // size, size), (0, 3, 5, 1, 2, 4)
        made = (n, channels * size**2, rows // size, columns // size)
    node.emit(lambda x: x.reshape(apart).permute(turned).reshape(made))


@lowering("Resize")
def _resize(node: OnnxNode) -> None:
    shape, attributes = list(node.meta(0).shape), node.attributes
    scales, sizes = node.constant(2), node.integers(3)
    factors = [s / n for n, s in zip(shape, sizes, strict=True)] if sizes else []
    if scales is not None and not sizes:
        factors = [float(s) for s in scales]
        sizes = [math.floor(n * s) for n, s in zip(shape, factors, strict=True)]
    if not sizes or sizes[:2] != shape[:2] or len(shape) not in (3, 4):
        raise node.error("resizes batch or channels", "rows and columns only")
    mode = attributes.get("mode", b"nearest").decode()
    how = attributes.get("coordinate_transformation_mode", b"half_pixel").decode()
    rounding = attributes.get("nearest_mode", b"round_prefer_floor").decode()
    stretched = attributes.get("keep_aspect_ratio_policy", b"stretch") == b"stretch"
    exact = all(math.isclose(s, f * n, rel_tol=1e-5) for n, s, f in zip(shape, sizes, factors, strict=True))
    if attributes.get("antialias", 0) or attributes.get("axes") or not stretched:
        raise node.error("resizes with antialias, axes or an aspect ratio", "sizes or scales of all axes")
    size = sizes[2:]
    if mode == "nearest" and how in _COORDINATES and rounding in _ROUNDED:
        given = list(zip(shape[2:], size, factors[2:], strict=True))
        rows = [_ROUNDED[rounding](_COORDINATES[how](torch.arange(s).double(), n, s, f)) for n, s, f in given]
        where = [row.clamp(0, n - 1).long() for row, n in zip(rows, shape[2:], strict=True)]
        for chosen, shift in (("nearest", 0.0), ("nearest-exact", 0.5)):
            usual = [((torch.arange(s) + shift) * n / s).floor().long() for n, s, _ in given]
            if all(map(torch.equal, where, usual)):
                node.emit(partial(functional.interpolate, size=size, mode=chosen), [node.operand(0)])
                return
        node.emit(_picked, [node.operand(0), *where])
    elif mode == "linear" and exact and how in ("half_pixel", "pytorch_half_pixel", "align_corners"):
        chosen, corners = ("linear", "bilinear")[len(shape) - 3], how == "align_corners"
        node.emit(partial(functional.interpolate, size=size, mode=chosen, align_corners=corners), [node.operand(0)])
    else:
        raise node.error(f"resizes by {mode}, {how}, {rounding}", "nearest neighbours or bilinear, half_pixel")


def _picked(x: torch.Tensor, *where: torch.Tensor) -> torch.Tensor:
    for axis, indices in enumerate(where, 2):
        x = torch.index_select(x, axis, indices)
    return x


_COORDINATES: dict[str, Callable[[torch.Tensor, int, int, float], torch.Tensor]] = {
    "half_pixel": lambda x, n, size, scale: (x + 0.5) / scale - 0.5,
    "pytorch_half_pixel": lambda x, n, size, scale: (x + 0.5) / scale - 0.5 if size > 1 else x * 0,
    "asymmetric": lambda x, n, size, scale: x / scale,
    "align_corners": lambda x, n, size, scale: x * (n - 1) / max(size - 1, 1),
}
"""Position of a result's elements in the operand, by both sizes and the scale factor."""
_ROUNDED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "floor": torch.floor,
    "ceil": torch.ceil,
    "round_prefer_floor": lambda x: torch.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: torch.floor(x + 0.5),
}
