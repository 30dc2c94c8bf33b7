"""What the TOSA forms of window operators share.

TOSA has windows only where the last one ends exactly at the end of the padded operand, so elements that no window
reaches are cut off first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from micronpu.ops.fused import Activation, Padding2d, Size2d, windows

if TYPE_CHECKING:
    from micronpu.emit.tosa import TosaEmitter, TosaTensor


def fitted(
    emit: TosaEmitter, x: TosaTensor, kernel: Size2d, stride: Size2d, padding: Padding2d, dilation: Size2d = (1, 1)
) -> tuple[TosaTensor, list[int]]:
    """x [N, H, W, C] without the elements that no window reaches, and TOSA's padding (top, bottom, left, right)."""
    size, sides = list(x.shape), []
    for axis, (before, after) in ((1, padding.rows), (2, padding.columns)):
        k, s, d = kernel[axis - 1], stride[axis - 1], dilation[axis - 1]
        count = windows(size[axis], k, s, (before, after), d)
        unread = size[axis] + before + after - ((count - 1) * s + (k - 1) * d + 1)
        size[axis] -= max(unread - after, 0)
        sides += [before, max(after - unread, 0)]
    return emit.slice(x, (0, 0, 0, 0), size), sides


def requantized(
    emit: TosaEmitter, accumulators: TosaTensor, scales: tuple[float, ...], activation: Activation
) -> TosaTensor:
    """int32 accumulators of x and weights with the given scales on the grid of the result, with the fused clamp.

    Bit for bit as `requantize_accumulators`.
    """
    x, y = emit.input_type(0), emit.output_type
    factors = [x.scale * scale / y.scale for scale in scales]
    return emit.requantize(accumulators, factors, activation.limits(y))
