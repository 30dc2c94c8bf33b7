"""Pools with windows of different sizes, composed of pools with equal windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from micronpu.ir.aten import AtenArguments, AtenNode
from micronpu.ir.graph import Tensor
from micronpu.ir.lowering import Float, Results, Writer, decomposes
from micronpu.ir.op import QuantizationRule, shares_qparams
from micronpu.ir.registry import imports
from micronpu.ir.window import NO_PADDING, Size2d
from micronpu.ops.movement import from_image, reshaped, to_image
from micronpu.ops.parts import MAX_PARTS, Pool, adaptive_windows, by_parts, runs
from micronpu.ops.pooling import AVERAGE, WINDOWS, AvgPool2d, MaxPool2d, averaged, is_finer, windows_averaged


def pools(emit: Callable[..., Tensor], kind: type[AvgPool2d] | type[MaxPool2d]) -> Pool:
    """Return a function that appends pools with their operand's qparams, for `by_parts`."""
    return lambda part, kernel, stride: emit(kind(kernel, stride), part)


def _quantization(node: AtenArguments) -> QuantizationRule:
    if "max" in node.overload:
        return shares_qparams()
    sizes = node.value("output_size")
    whole = all(n == 1 for n in (sizes if isinstance(sizes, (list, tuple)) else [sizes]))
    return AVERAGE if whole else WINDOWS


@imports(
    "adaptive_avg_pool1d.default",
    "adaptive_avg_pool2d.default",
    "_adaptive_avg_pool2d.default",
    "adaptive_max_pool1d.default",
    "adaptive_max_pool2d.default",
    quantization=_quantization,
    moves_only=False,
)
def build_adaptive(node: AtenNode) -> Tensor:
    """Pool to an output size: element i of n covers the input from i / n to (i + 1) / n, rounded outwards."""
    spatial = 1 if "pool1d" in node.overload else 2
    x = to_image(node, node.tensor("x"), spatial)
    counts = (1, *node.shape[-spatial:])[-2:]
    finer = "max" not in node.overload and is_finer(node, x)
    if finer and counts == (1, 1):
        return reshaped(node, averaged(node, x, (1, 2)), node.shape)

    rows, columns = (adaptive_windows(n, m) for n, m in zip(x.shape[1:3], counts, strict=True))
    pool = pools(node.emit, MaxPool2d if "max" in node.overload else AvgPool2d)
    if finer:

        def pool(part: Tensor, kernel: Size2d, stride: Size2d) -> Tensor:
            return windows_averaged(node, part, kernel, stride, NO_PADDING)

    return from_image(node, by_parts(node.emit, x, rows, columns, pool))


@decomposes("adaptive_max_pool1d.default", "adaptive_max_pool2d.default", early=True)
def _adaptive_max_to_pools(write: Writer) -> Float:
    """An adaptive max pool, which has indices for a second result, as ordinary ones.

    x -> adaptive_max_pool2d -> y, _        x -> max_pool2d -> y
                                            x -> slices -> max_pool2d each -> cat -> y, for windows of unequal size
    """
    read, x = write.read(), write.given["self"]
    spatial = 1 if "pool1d" in write.overload else 2
    if read is None or not read <= {0}:
        return None
    shape, result = write.shape(x), write.shape()
    plans = [runs(adaptive_windows(n, m)) for n, m in zip(shape[-spatial:], result[-spatial:], strict=True)]
    if len(plans[0]) * len(plans[-1]) > MAX_PARTS:
        return None
    pool = "max_pool1d.default" if spatial == 1 else "max_pool2d.default"

    def build(part: Float, axes: Sequence[int], kernel: list[int], stride: list[int]) -> Float:
        if not axes:
            return write(pool, part, kernel, stride)
        axis, rest = axes[0], axes[1:]
        pieces = []
        for run in plans[axis]:
            whole = (run.start, run.stop) == (0, shape[axis - spatial])
            cut = part if whole else write("slice.Tensor", part, axis - spatial, run.start, run.stop)
            pieces.append(build(cut, rest, [*kernel, run.size], [*stride, run.stride]))
        return pieces[0] if len(pieces) == 1 else write("cat.default", pieces, axis - spatial)

    return Results({0: build(x, range(spatial), [], [])})


@decomposes("max_pool1d_with_indices.default", "max_pool2d_with_indices.default", early=True)
def _drop_indices(write: Writer) -> Float:
    """A max pool whose indices are unused.

    x -> max_pool2d_with_indices -> y, _        x -> max_pool2d -> y
    """
    read = write.read()
    if read is None or not read <= {0}:
        return None
    pool = "max_pool1d.default" if "pool1d" in write.overload else "max_pool2d.default"
    names = ("self", "kernel_size", "stride", "padding", "dilation", "ceil_mode")
    return Results({0: write(pool, *(write.given[name] for name in names))})
