"""Windows that reduce height and width."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from micronpu.errors import UnsupportedError
from micronpu.ir.types import TensorType
from micronpu.ops.aten import pair
from micronpu.ops.base import Op, Value, from_aten, operator, shares_qparams
from micronpu.ops.fused import NO_PADDING, Padding2d, Size2d, litert_padding, windows
from micronpu.ops.movement import channels_first, channels_last

if TYPE_CHECKING:
    from collections.abc import Iterator

    from micronpu.emit.litert import LiteRtEmitter
    from micronpu.ir.graph import Tensor
    from micronpu.ops.aten import AtenNode


@dataclass(frozen=True)
class _Pool(Op):
    kernel: Size2d = (1, 1)
    stride: Size2d = (1, 1)
    padding: Padding2d = NO_PADDING

    quantization = shares_qparams()

    def infer(self, *operands: TensorType) -> TensorType:
        (x,) = operands
        rows = windows(x.shape[1], self.kernel[0], self.stride[0], self.padding.rows)
        columns = windows(x.shape[2], self.kernel[1], self.stride[1], self.padding.columns)
        return x.with_shape((x.shape[0], rows, columns, x.channels))

    def taps(self, x: npt.NDArray[Any], y: TensorType, fill: int) -> Iterator[npt.NDArray[Any]]:
        """For every position in the window: the elements [N, OH, OW, C] that it meets."""
        p = self.padding
        padded = np.pad(x, ((0, 0), p.rows, p.columns, (0, 0)), constant_values=fill)
        _, rows, columns, _ = y.shape
        for i in range(self.kernel[0]):
            for j in range(self.kernel[1]):
                yield padded[
                    :,
                    i : i + (rows - 1) * self.stride[0] + 1 : self.stride[0],
                    j : j + (columns - 1) * self.stride[1] + 1 : self.stride[1],
                    :,
                ]

    def litert_fields(self, emit: LiteRtEmitter) -> dict[str, Any]:
        padding = litert_padding(emit.input_type(0).shape[1:3], self.kernel, self.stride, self.padding)
        return {
            "padding": emit.padding(padding, self.padding),
            "strideH": self.stride[0],
            "strideW": self.stride[1],
            "filterHeight": self.kernel[0],
            "filterWidth": self.kernel[1],
        }


def _window(node: AtenNode) -> tuple[Tensor, Size2d, Size2d, Padding2d]:
    """x in [N, C, H, W], kernel, stride and padding of a 2-D pool."""
    x = node.tensor("x")
    if len(x.shape) != 4:
        raise UnsupportedError(f"A 2-D pool of a tensor of rank {len(x.shape)} is not imported; it needs [N, C, H, W].")
    kernel = pair(node, "kernel_size")
    stride = pair(node, "stride") if node.value("stride") else kernel
    padding = Padding2d.symmetric(*pair(node, "padding"))
    if node.value("ceil_mode"):
        # A last, partial window only exists where the plain count leaves elements over.
        sizes = zip(x.shape[2:], kernel, stride, (padding.rows, padding.columns), strict=True)
        if any((n + sum(p) - k) % s for n, k, s, p in sizes):
            raise UnsupportedError("ceil_mode makes a last window that is only partly filled.", hint="pad the input")
    return x, kernel, stride, padding


@operator("max_pool2d")
class MaxPool2d(_Pool):
    """Largest element of each window; padding never wins.

    x [N, H, W, C] int8  ->  y [N, OH, OW, C] int8, qparams of x.
    """

    def reference(self, y: TensorType, *operands: Value) -> npt.NDArray[Any]:
        (x,) = operands
        result = np.full(y.shape, x.type.dtype.limits[0], y.dtype.value)
        for taps in self.taps(x.data, y, x.type.dtype.limits[0]):
            result = np.maximum(result, taps)
        return result

    @from_aten("max_pool2d.default", "max_pool2d_with_indices.default")
    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        x, kernel, stride, padding = _window(node)
        if pair(node, "dilation") != (1, 1):
            raise UnsupportedError(f"`max_pool2d` with dilation {node.value('dilation')} is not imported.")
        y = node.emit(cls(kernel, stride, padding), channels_last(node, x))
        return channels_first(node, y)

    def to_litert(self, emit: LiteRtEmitter) -> None:
        emit.add("MAX_POOL_2D", options="Pool2DOptions", fields=self.litert_fields(emit), version=2)


@operator("avg_pool2d")
class AvgPool2d(_Pool):
    """Mean of each window, rounded to nearest with ties away from zero.

    x [N, H, W, C] int8  ->  y [N, OH, OW, C] int8, qparams of x.  ``count_padding`` says whether padded positions
    count as zeros (True) or not at all (False).
    """

    count_padding: bool = False

    def reference(self, y: TensorType, *operands: Value) -> npt.NDArray[Any]:
        (x,) = operands
        fill = x.zero_point if self.count_padding else 0
        total = np.zeros(y.shape, np.int64)
        for taps in self.taps(x.data.astype(np.int64), y, fill):
            total += taps
        count = np.zeros(y.shape, np.int64)
        for taps in self.taps(np.ones(x.type.shape, np.int64), y, int(self.count_padding)):
            count += taps
        # The quotient of C++, towards zero, of the total moved by half a divisor away from zero.
        magnitude = (np.abs(total) + count // 2) // count
        return np.asarray((np.sign(total) * magnitude).clip(*y.dtype.limits).astype(y.dtype.value))

    @from_aten("avg_pool2d.default")
    @classmethod
    def build(cls, node: AtenNode) -> Tensor:
        x, kernel, stride, padding = _window(node)
        if node.value("divisor_override"):
            raise UnsupportedError(
                f"`avg_pool2d` with divisor_override = {node.value('divisor_override')} is not imported."
            )
        count_padding = bool(node.value("count_include_pad")) and bool(padding)
        y = node.emit(cls(kernel, stride, padding, count_padding), channels_last(node, x))
        return channels_first(node, y)

    @from_aten("adaptive_avg_pool2d.default", "_adaptive_avg_pool2d.default")
    @classmethod
    def build_adaptive(cls, node: AtenNode) -> Tensor:
        x = node.tensor("x")
        if len(x.shape) != 4:
            raise UnsupportedError(f"`adaptive_avg_pool2d` of a tensor of rank {len(x.shape)} is not imported.")
        size, result = x.shape[2:], node.shape[2:]
        if any(n % m for n, m in zip(size, result, strict=True)):
            raise UnsupportedError(
                f"`adaptive_avg_pool2d` from {list(size)} to {list(result)} has windows of unequal size.",
                hint="choose an output size that divides the input size",
            )
        kernel = (size[0] // result[0], size[1] // result[1])
        return channels_first(node, node.emit(cls(kernel, kernel), channels_last(node, x)))

    def to_litert(self, emit: LiteRtEmitter) -> None:
        emit.add("AVERAGE_POOL_2D", options="Pool2DOptions", fields=self.litert_fields(emit), version=2)
