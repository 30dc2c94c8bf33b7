"""The bilinear filter as products with constants, for Ethos-U variants without bilinear resize."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from micronpu.base.errors import UnsupportedError
from micronpu.ir.registry import operator
from micronpu.ops.resize import ResizeBilinear, axis_weights

if TYPE_CHECKING:
    from micronpu.emit.tosa import TosaEmitter, TosaTensor

FACTORS = (2, 4)
"""Factors for which every product of two weights is an int8 number, with one bit to spare."""


@operator("resize_bilinear_products")
class BilinearProducts(ResizeBilinear):
    """`ResizeBilinear` to 2 or 4 times the height and width with half-pixel centers, as a depthwise convolution.

    x [N, H, W, C] int8  ->  y [N, f * H, f * W, C] int8, qparams of x.

    Computes the same integers with another TOSA form: every phase of the result is a separate channel.
    """

    def factor(self, height: int, width: int) -> int:
        """Ratio of the sizes of result and input; 0 if products do not apply."""
        factor = self.size[0] // height
        fits = self.half_pixel_centers and self.size == (factor * height, factor * width)
        return factor if fits and factor in FACTORS else 0

    def to_tosa(self, emit: TosaEmitter) -> TosaTensor:
        """Repeat x with extended borders for every phase -> DEPTHWISE_CONV2D -> RESCALE -> interleave the phases.

        The weights are doubled: the double rounding of their sums is then a single rounding with ties away from zero.
        """
        x = emit.input(0)
        count, height, width, channels = x.shape
        factor = self.factor(height, width)
        if not factor or x.dtype != "INT8":
            raise UnsupportedError(f"{self} of {list(x.shape)} is no resize by {' or '.join(map(str, FACTORS))}.")
        for axis in (1, 2):
            first, last, size = [0] * 4, [0] * 4, list(x.shape)
            last[axis], size[axis] = x.shape[axis] - 1, 1
            x = emit.concat([emit.slice(x, first, size), x, emit.slice(x, last, size)], axis)
        phases = factor * factor
        wide = emit.concat([x] * phases, 3)
        along = axis_weights(factor)
        kernels = 2 * np.einsum("ri,sj->ijrs", along, along).reshape(3, 3, phases)
        weight = emit.constant(np.repeat(kernels, channels, axis=2)[..., None])
        shape = (count, height, width, phases * channels)
        sums = emit.plain_convolution(wide, weight, shape, (0, 0), "DEPTHWISE_CONV2D")
        shift = (2 * (2 * factor) ** 2).bit_length() - 1
        rounded = emit.rescale(sums, "INT8", [1 << 30], [30 + shift])
        rows = emit.reshape(rounded, (count * height, width, factor, factor * channels))
        return emit.reshape(emit.transpose(rows, (0, 2, 1, 3)), (count, *self.size, channels))
