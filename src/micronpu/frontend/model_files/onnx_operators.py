"""Lowerings of ONNX operators that compute: functions of PyTorch with the same semantics.

Semantics: https://onnx.ai/onnx/operators/.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from micronpu.frontend.model_files.network import Function, Operand
from micronpu.frontend.model_files.onnx_nodes import DAMAGED, DTYPES, LOWERINGS, Lowering, OnnxNode, lowering
from micronpu.frontend.run import truncated_quotient

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


def _prelu(x: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
    shape = (1,) * (x.dim() - slope.dim()) + tuple(slope.shape)
    if slope.numel() == 1 or (x.dim() > 1 and slope.numel() == shape[1]):
        return functional.prelu(x, slope.reshape(-1))
    return torch.where(x >= 0, x, x * slope)


_PLAIN: dict[str, Function] = {
    "Abs": torch.abs, "Acos": torch.acos, "Acosh": torch.acosh, "Add": torch.add, "And": torch.logical_and,
    "Asin": torch.asin, "Asinh": torch.asinh, "Atan": torch.atan, "Atanh": torch.atanh,
    "BitwiseAnd": torch.bitwise_and, "BitwiseNot": torch.bitwise_not, "BitwiseOr": torch.bitwise_or,
    "BitwiseXor": torch.bitwise_xor, "Ceil": torch.ceil, "Cos": torch.cos, "Cosh": torch.cosh, "Det": torch.det,
    "Equal": torch.eq, "Erf": torch.erf, "Exp": torch.exp, "Floor": torch.floor,
    "Greater": torch.gt, "GreaterOrEqual": torch.ge, "HardSwish": functional.hardswish, "Identity": lambda x: x,
    "IsNaN": torch.isnan, "Less": torch.lt, "LessOrEqual": torch.le, "Log": torch.log, "MatMul": torch.matmul,
    "Max": _folded_over(torch.maximum), "Min": _folded_over(torch.minimum), "Mish": functional.mish, "Mul": torch.mul,
    "Neg": torch.neg, "Not": torch.logical_not, "Or": torch.logical_or, "PRelu": _prelu,
    "Reciprocal": torch.reciprocal, "Relu": torch.relu, "Round": torch.round, "Sigmoid": torch.sigmoid,
    "Sign": torch.sign, "Sin": torch.sin, "Sinh": torch.sinh, "Softplus": functional.softplus,
    "Softsign": functional.softsign, "Sqrt": torch.sqrt, "Sub": torch.sub, "Sum": _folded_over(torch.add),
    "Tan": torch.tan, "Tanh": torch.tanh, "Where": torch.where, "Xor": torch.logical_xor,
    "Mean": lambda *given: _folded_over(torch.add)(*given) / len(given),
}  # fmt: skip
for _kind, _function in _PLAIN.items():
    LOWERINGS[_kind] = partial(OnnxNode.emit, function=_function)


def _by_attributes(*names: str) -> Callable[[Callable[..., Function]], Lowering]:
    """Make a lowering from a function that returns a function of tensors, given attributes."""

    def make(function: Callable[..., Function]) -> Lowering:
        return lambda node: node.emit(function(*node.attributes(*names)))

    return make


_SELU = (1.67326319217681884765625, 1.05070102214813232421875)


def _selu(alpha: float, gamma: float) -> Function:
    if (alpha, gamma) == _SELU:
        return functional.selu
    return lambda x: functional.elu(x, alpha) * gamma


def _hard_sigmoid(alpha: float, beta: float) -> Function:
    if math.isclose(alpha, 1 / 6, rel_tol=1e-5) and beta == 0.5:
        return functional.hardsigmoid
    return lambda x: torch.clamp(x * alpha + beta, 0, 1)


def _shrink(bias: float, limit: float) -> Function:
    return lambda x: torch.where(x < -limit, x + bias, torch.where(x > limit, x - bias, torch.zeros_like(x)))


def _is_infinite(negative: int, positive: int) -> Function:
    signs = [sign for sign, wanted in ((-math.inf, negative), (math.inf, positive)) if wanted]
    return lambda x: _folded_over(torch.logical_or)(*[x == s for s in signs]) if signs else x != x & False


LOWERINGS |= {
    "LeakyRelu": _by_attributes("alpha")(lambda alpha: partial(functional.leaky_relu, negative_slope=alpha)),
    "Elu": _by_attributes("alpha")(lambda alpha: partial(functional.elu, alpha=alpha)),
    "Celu": _by_attributes("alpha")(lambda alpha: partial(functional.celu, alpha=alpha)),
    "Selu": _by_attributes("alpha", "gamma")(_selu),
    "Swish": _by_attributes("alpha")(
        lambda alpha: functional.silu if alpha == 1 else lambda x: x * torch.sigmoid(x * alpha)
    ),
    "ThresholdedRelu": _by_attributes("alpha")(lambda alpha: partial(functional.threshold, threshold=alpha, value=0.0)),
    "HardSigmoid": _by_attributes("alpha", "beta")(_hard_sigmoid),
    "Gelu": _by_attributes("approximate")(lambda approximate: partial(functional.gelu, approximate=approximate)),
    "Shrink": _by_attributes("bias", "lambd")(_shrink),
    "IsInf": _by_attributes("detect_negative", "detect_positive")(_is_infinite),
    "BitShift": _by_attributes("direction")(
        lambda direction: torch.bitwise_left_shift if direction == "LEFT" else torch.bitwise_right_shift
    ),
    "Einsum": _by_attributes("equation")(lambda equation: partial(torch.einsum, equation)),
}


@lowering("Div", "Mod")
def _divided(node: OnnxNode) -> None:
    a, b = node.operand(0), node.operand(1)
    whole = not node.meta(0).is_floating_point() and not node.meta(1).is_floating_point()
    # The processor ends the process over x / 0, and in a program over the smallest integer / -1; what is known here is
    # divided by `truncated_quotient`.
    ends = (0, -1) if isinstance(a, int) else (0,)
    if whole and (isinstance(b, int) or any(bool(torch.eq(b, end).any()) for end in ends)):
        raise node.error("divides integers by 0, by -1, or by what is not known", "floats, or another divisor")
    function: Function = _integer_division
    if node.kind == "Mod":
        function = torch.fmod if node.flag("fmod") else torch.remainder
    node.emit(function)


@lowering("Pow")
def _power(node: OnnxNode) -> None:
    base, given = node.meta(0), node.operand(1)
    if isinstance(given, torch.Tensor) and given.numel() and bool((given == given.reshape(-1)[0]).all()):
        number = given.reshape(-1)[0].item()
        if torch.broadcast_shapes(base.shape, given.shape) == base.shape and base.is_floating_point():
            node.emit(torch.sqrt if number == 0.5 else lambda x: torch.pow(x, number), [node.operand(0)])
            return
    node.emit(lambda x, y: torch.pow(x, y).to(x.dtype))


def _along_axis(node: OnnxNode, function: Function) -> None:
    """Emit a function along one axis; in old versions along all axes from this one on."""
    rank, axis = node.meta(0).dim(), node.axis()
    if node.opset < 13 and axis != rank - 1:
        node.emit(lambda x: function(x.flatten(axis), dim=axis).reshape(x.shape))
        return
    node.emit(partial(function, dim=axis))


def _one_hot_of_largest(x: torch.Tensor, dim: int) -> torch.Tensor:
    where = torch.argmax(x, dim=dim, keepdim=True)
    return torch.zeros_like(x).scatter(dim, where, torch.ones_like(where, dtype=x.dtype))


_ALONG_AXIS: dict[str, Function] = {
    "Softmax": torch.softmax, "LogSoftmax": torch.log_softmax, "Hardmax": _one_hot_of_largest,
}  # fmt: skip
LOWERINGS |= {kind: partial(_along_axis, function=function) for kind, function in _ALONG_AXIS.items()}


@lowering("CumSum", "CumProd")
def _cumulative(node: OnnxNode) -> None:
    (axis,) = node.integers(1) or [0]
    exclusive, reverse = node.flag("exclusive"), node.flag("reverse")
    whole = torch.cumsum if node.kind == "CumSum" else torch.cumprod
    neutral = 0 if node.kind == "CumSum" else 1

    def cumulative(x: torch.Tensor) -> torch.Tensor:
        x = torch.flip(x, [axis]) if reverse else x
        if exclusive:
            first = torch.full_like(x.narrow(axis, 0, 1), neutral)
            x = torch.cat([first, x.narrow(axis, 0, x.shape[axis] - 1)], axis)
        made = whole(x, dim=axis, dtype=x.dtype)
        return torch.flip(made, [axis]) if reverse else made

    node.emit(cumulative, [node.operand(0)])


@lowering("Clip")
def _clip(node: OnnxNode) -> None:
    given: dict[Function, Operand] = {at: node.operand(i) for i, at in _BOUNDS if node.has(i)}
    for at, name in ((torch.maximum, "min"), (torch.minimum, "max")):  # attributes before opset 11
        if at not in given and (number := node.attribute(name)) is not None and abs(number) < _NO_BOUND:
            given[at] = torch.tensor(number)
    if not given:
        node.emit(lambda x: x, [node.operand(0)])
    elif all(isinstance(bound, torch.Tensor) for bound in given.values()):
        bounds = (given.get(at) for _, at in _BOUNDS)
        low, high = (bound.item() if isinstance(bound, torch.Tensor) else None for bound in bounds)
        six = (low, high) == (0.0, 6.0) and node.meta(0).is_floating_point()
        clamp = functional.relu6 if six else partial(torch.clamp, min=low, max=high)
        node.emit(clamp, [node.operand(0)])
    else:  # computed, such as 80 dB below the largest value of a spectrum

        def clipped(x: torch.Tensor, *bounds: torch.Tensor) -> torch.Tensor:
            for at, bound in zip(given, bounds, strict=True):
                x = at(x, bound)
            return x

        node.emit(clipped, [node.operand(0), *given.values()])


_BOUNDS: tuple[tuple[int, Function], ...] = ((1, torch.maximum), (2, torch.minimum))
_NO_BOUND = 3.4e38
"""Default of the attributes of Clip, the largest float32."""


@lowering("Cast", "CastLike")
def _cast(node: OnnxNode) -> None:
    node.ignores("saturate", "round_mode")  # about floats of 8 bits alone, which have no dtype below
    dtype = node.meta(1).dtype if node.kind == "CastLike" else DTYPES.get(node.attribute("to"))
    if dtype is None:
        raise node.error(f"casts to the element type {node.attribute('to')}", "float32, int32, int64 or bool")
    node.emit(lambda x: x.to(dtype), [node.operand(0)])


@lowering("Dropout")
def _dropout(node: OnnxNode) -> None:
    node.ignores("ratio", "seed", "is_test")
    node.has(1)
    ratio, training = node.constant(1) if node.has(2) else None, node.constant(2)
    if training is not None and bool(training) and (ratio is None or float(ratio) != 0):
        raise node.error("is in training mode", "the model exported for inference")
    node.emit(lambda x: (x, torch.ones_like(x, dtype=torch.bool)), [node.operand(0)])


# ---------------------------------------------------------------- convolution, linear


def window(node: OnnxNode, kernel: Sequence[int]) -> tuple[list[int], list[int], list[tuple[int, int]]]:
    """Return strides, dilations, and (before, after) paddings of each axis of an image."""
    count, size = len(kernel), node.meta(0).shape[2:]
    stride, dilation = (node.attribute(n) or [1] * count for n in ("strides", "dilations"))
    how, flat = node.attribute("auto_pad"), node.attribute("pads") or [0] * 2 * count
    if {len(stride), len(dilation), len(flat) // 2, len(size)} != {count}:
        raise node.error(f"has a kernel of {count} axes, and other strides, dilations or pads", DAMAGED)
    if how in ("NOTSET", "VALID"):
        flat = flat if how == "NOTSET" else [0] * 2 * count
        return stride, dilation, list(zip(flat[:count], flat[count:], strict=True))
    pads = []
    for n, k, s, d in zip(size, kernel, stride, dilation, strict=True):
        total = max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
        pads.append(_halves(total, how))
    return stride, dilation, pads


def _halves(total: int, how: str) -> tuple[int, int]:
    return (total // 2, total - total // 2) if how == "SAME_UPPER" else (total - total // 2, total // 2)


def padded(x: torch.Tensor, pads: Sequence[tuple[int, int]], value: float = 0.0) -> torch.Tensor:
    """Pad the last axes by (before, after) with a value; negative numbers crop."""
    return functional.pad(x, [n for pair in reversed(pads) for n in pair], value=value)


def _kernel(node: OnnxNode) -> list[int]:
    kernel, stated = list(node.meta(1).shape[2:]), node.attribute("kernel_shape")
    if stated not in (None, kernel):
        raise node.error(f"has a kernel of {kernel}, and states {stated}", DAMAGED)
    if not 1 <= len(kernel) <= 3:
        raise node.error(f"has a kernel of {len(kernel)} axes", "one to three")
    return kernel


@lowering("Conv")
def _convolution(node: OnnxNode) -> None:
    kernel = _kernel(node)
    stride, dilation, pads = window(node, kernel)
    function = (functional.conv1d, functional.conv2d, functional.conv3d)[len(kernel) - 1]
    whole = partial(function, stride=stride, dilation=dilation, groups=node.attribute("group"))
    if all(a == b for a, b in pads):
        node.emit(partial(whole, padding=[a for a, _ in pads]))
    else:
        node.emit(lambda x, *others: whole(padded(x, pads), *others))


@lowering("ConvTranspose")
def _transposed(node: OnnxNode) -> None:
    kernel = _kernel(node)
    stride, dilation, pads = window(node, kernel)
    extra, how = node.attribute("output_padding") or [0] * len(kernel), node.attribute("auto_pad")
    spans = zip(node.meta(0).shape[2:], kernel, stride, dilation, strict=True)
    whole = [(n - 1) * s + (k - 1) * d + 1 for n, k, s, d in spans]
    wanted = node.attribute("output_shape")
    if wanted is None and how.startswith("SAME"):
        wanted = [n * s for n, s in zip(node.meta(0).shape[2:], stride, strict=True)]
    if wanted is not None:
        pads = [_halves(n + e - w, how) for n, e, w in zip(whole, extra, wanted[-len(kernel) :], strict=True)]
    given = {
        "stride": stride, "dilation": dilation, "groups": node.attribute("group"),
    }  # fmt: skip
    function = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)[len(kernel) - 1]
    # PyTorch crops both ends equally; more cropping at the end means a smaller output padding.
    rest = [e + a - b for e, (a, b) in zip(extra, pads, strict=True)]
    if all(0 <= r < max(s, d) and a >= 0 for r, s, d, (a, _) in zip(rest, stride, dilation, pads, strict=True)):
        node.emit(partial(function, padding=[a for a, _ in pads], output_padding=rest, **given))
        return
    ends = [(-a, e - b) for e, (a, b) in zip(extra, pads, strict=True)]
    if any(before > 0 or after > 0 for before, after in ends) and node.has(2):
        raise node.error("has pads that add a border, with a bias", "a bias in a separate node")
    node.emit(lambda *operands: padded(function(*operands, **given), ends))


@lowering("Gemm")
def _gemm(node: OnnxNode) -> None:
    alpha, beta, first, turned = *node.attributes("alpha", "beta"), node.flag("transA"), node.flag("transB")

    def gemm(x: torch.Tensor, w: torch.Tensor, c: torch.Tensor | None = None) -> torch.Tensor:
        x = x.T if first else x
        w = (w if turned else w.T) * alpha if alpha != 1.0 else (w if turned else w.T)
        bias = c if c is None or beta == 1.0 else c * beta
        if bias is not None and (bias.dim() != 1 or bias.shape[0] != w.shape[0]):
            return functional.linear(x, w) + bias
        return functional.linear(x, w, bias)

    node.emit(gemm)


# ---------------------------------------------------------------- pooling


def _count(n: int, pads: tuple[int, int], k: int, s: int, d: int, ceil: bool) -> int:
    """Return the number of windows along an axis of n elements."""
    last = n + sum(pads) - (k - 1) * d - 1
    count = last // s + 1
    return count + (ceil and last % s > 0 and count * s < n + pads[0])  # the last window begins inside


@lowering("MaxPool", "AveragePool", "LpPool")
def _pool(node: OnnxNode) -> None:
    kernel, size, ceil = node.attribute("kernel_shape"), node.meta(0).shape[2:], node.flag("ceil_mode")
    axes = len(kernel)
    if axes > 3:
        raise node.error(f"pools {axes} axes", "at most three")
    stride, dilation, pads = window(node, kernel)
    spans = list(zip(size, pads, kernel, stride, dilation, strict=True))
    counts = [_count(*span, ceil) for span in spans]
    # Extents of the windows beyond the operand: explicit pads need no rounding mode.
    ends = [(a, (m - 1) * s + (k - 1) * d + 1 - n - a) for m, (n, (a, _), k, s, d) in zip(counts, spans, strict=True)]
    # PyTorch pads both ends alike; what is beyond the last window does not matter.
    alike = [(n, (a, a), k, s, d) for n, (a, _), k, s, d in spans]
    rounded = [up for up in (False, True) if counts == [_count(*span, up) for span in alike]]
    if not all(0 <= 2 * a <= (k - 1) * d + 1 for _, (a, _), k, _, d in spans):
        rounded = []
    given: dict[str, Any] = {"kernel_size": kernel, "stride": stride}
    whole: dict[str, Any] = {"padding": [a for a, _ in pads], "ceil_mode": rounded[0]} if rounded else {}
    if node.kind == "MaxPool":
        _max_pool(node, given | {"dilation": dilation}, whole, ends)
        return
    if set(dilation) != {1}:
        raise node.error("is dilated", "an average of neighbours")
    average = (functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d)[axes - 1]
    if node.kind == "LpPool":
        p, cells = node.attribute("p"), math.prod(kernel)
        node.emit(lambda x: (average(padded(x.abs() ** p, ends), **given) * cells) ** (1 / p))
        return
    include = node.flag("count_include_pad")
    ones = torch.ones((1, 1, *size))
    inside = padded(ones, pads, 1.0) if include else ones
    extents = [(0, b - after) for (_, b), (_, after) in zip(ends, pads, strict=True)] if include else ends
    share = average(padded(inside, extents), **given)
    if whole and (not include or (not whole["ceil_mode"] and all(a == b for a, b in pads))):
        node.emit(partial(average, **given, **whole, count_include_pad=include))
    elif bool((share == 1).all()):
        node.emit(lambda x: average(padded(x, ends), **given))
    else:  # each mean is over the elements that count
        node.emit(lambda x, s: average(padded(x, ends), **given) / s, [node.operand(0), share])


def _max_pool(node: OnnxNode, given: dict[str, Any], whole: dict[str, Any], ends: list[tuple[int, int]]) -> None:
    """Append a pool, with the padding and rounding of PyTorch's that has the same windows, if there is one."""
    node.ignores("storage_order")
    axes, size = len(ends), list(node.meta(0).shape[2:])
    dtype = node.meta(0).dtype
    pool = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)[axes - 1]
    if len(node.outputs) > 1:
        if any(n for pair in ends for n in pair) or node.flag("storage_order"):
            raise node.error("gives indices of a padded image", "indices without pads, row by row")
        planes = torch.arange(math.prod(node.meta(0).shape[:2])).reshape(*node.meta(0).shape[:2], *[1] * axes)

        def with_indices(x: torch.Tensor, p: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            made, where = pool(x, **given, return_indices=True)
            return made, where + p * math.prod(size)

        node.emit(with_indices, [node.operand(0), planes])
        return
    lowest = -math.inf if dtype.is_floating_point else torch.iinfo(dtype).min

    def largest(x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = pool(x, **given, **whole) if whole else pool(padded(x, ends, lowest), **given)
        return made

    node.emit(largest if dtype.is_floating_point else lambda x: largest(x.to(torch.float32)).to(dtype))


@lowering("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def _global_pool(node: OnnxNode) -> None:
    axes = list(range(2, node.meta(0).dim()))
    if node.kind == "GlobalLpPool":
        p = node.attribute("p")
        node.emit(lambda x: (x.abs() ** p).sum(axes, keepdim=True) ** (1 / p))
        return
    average = node.kind == "GlobalAveragePool"
    node.emit(lambda x: x.mean(axes, keepdim=True) if average else x.amax(axes, keepdim=True))


# ---------------------------------------------------------------- reductions


def _product(x: torch.Tensor, axes: list[int], keeps: bool) -> torch.Tensor:
    for axis in sorted(axes, reverse=True):
        x = x.prod(axis, keepdim=keeps, dtype=x.dtype)
    return x


_REDUCTIONS: dict[str, Callable[[torch.Tensor, list[int], bool], torch.Tensor]] = {
    "ReduceMean": lambda x, axes, keeps: x.mean(axes, keepdim=keeps),
    "ReduceSum": lambda x, axes, keeps: x.sum(axes, keepdim=keeps, dtype=x.dtype),
    "ReduceMax": lambda x, axes, keeps: x.amax(axes, keepdim=keeps),
    "ReduceMin": lambda x, axes, keeps: x.amin(axes, keepdim=keeps),
    "ReduceL1": lambda x, axes, keeps: x.abs().sum(axes, keepdim=keeps, dtype=x.dtype),
    "ReduceL2": lambda x, axes, keeps: x.square().sum(axes, keepdim=keeps).sqrt(),
    "ReduceSumSquare": lambda x, axes, keeps: x.square().sum(axes, keepdim=keeps, dtype=x.dtype),
    "ReduceLogSum": lambda x, axes, keeps: x.sum(axes, keepdim=keeps).log(),
    "ReduceLogSumExp": lambda x, axes, keeps: torch.logsumexp(x, axes, keepdim=keeps),
    "ReduceProd": _product,
}
_KEEP_ONE = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceLogSumExp", "ReduceProd")
"""Reductions that return a single element as it is."""


@lowering(*_REDUCTIONS)
def _reduce(node: OnnxNode) -> None:
    axes, rank = node.integers(1, "axes"), node.meta(0).dim()
    empty, keeps = node.flag("noop_with_empty_axes"), node.flag("keepdims")
    if not axes and empty:
        if node.kind not in _KEEP_ONE:
            raise node.error("has no axes and noop_with_empty_axes", "Abs, Log or Mul in its place")
        node.emit(lambda x: x, [node.operand(0)])
        return
    every = [a % rank if -rank <= a < rank else _no_axis(node, a) for a in axes] if axes else list(range(rank))
    if node.kind == "ReduceMean" and not node.meta(0).is_floating_point():
        raise node.error("averages integers", "Cast to float before it")
    function = _REDUCTIONS[node.kind]
    node.emit(lambda x: function(x, every, keeps) if every else x, [node.operand(0)])


def _no_axis(node: OnnxNode, axis: int) -> int:
    raise node.error(f"has the axis {axis}, and its operand has {node.meta(0).dim()} dimensions", DAMAGED)


@lowering("ArgMax", "ArgMin")
def _arg(node: OnnxNode) -> None:
    axis, keeps, last = node.axis(), node.flag("keepdims"), node.flag("select_last_index")
    function = torch.argmax if node.kind == "ArgMax" else torch.argmin

    def position(x: torch.Tensor) -> torch.Tensor:
        if last:
            return x.shape[axis] - 1 - function(torch.flip(x, [axis]), dim=axis, keepdim=keeps)
        return function(x, dim=axis, keepdim=keeps)

    node.emit(position)
