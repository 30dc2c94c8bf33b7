"""The rewrites of one operator for an Ethos-U, by what they are for."""

from __future__ import annotations

from micronpu.passes.rewrite import Rewrite
from micronpu.passes.rewrites import ReflectBySlices
from micronpu.targets.ethosu.rewrites_cheaper import (
    ChannelsIntoKernel,
    DiagonalConvolution,
    FlatPixels,
    MeanAsPool,
    PixelsIntoChannels,
    PlanesIntoConvolution,
    PoolAsColumn,
    TransposeAsMatrix,
    TransposeByConvolution,
)
from micronpu.targets.ethosu.rewrites_fit import MultiplyBilinear, MultiplyBytes, PickFromDepthwise
from micronpu.targets.ethosu.rewrites_sound import ExtremesAsPools, LinearAsConvolution
from micronpu.targets.ethosu.rewrites_spare import DENSE_RANK, LARGEST_STRIDE, FlattenSlices, StridesIntoChannels

__all__ = ["DENSE_RANK", "LARGEST_STRIDE", "REWRITES", "TO_BE_SOUND", "TO_COST_LESS", "TO_FIT", "TO_SPARE"]

TO_FIT: tuple[Rewrite, ...] = (MultiplyBilinear(), MultiplyBytes(), PickFromDepthwise())
"""Of what Vela refuses."""
TO_SPARE: tuple[Rewrite, ...] = (FlattenSlices(), StridesIntoChannels())
"""Of what Vela takes, and has trouble with."""
TO_COST_LESS: tuple[Rewrite, ...] = (
    TransposeAsMatrix(),
    TransposeByConvolution(),
    PlanesIntoConvolution(),
    PixelsIntoChannels(),
    ChannelsIntoKernel(),
    FlatPixels(),
    DiagonalConvolution(),
    MeanAsPool(),
    PoolAsColumn(),
)
"""Of what Vela takes, where its estimate says that it pays."""

TO_BE_SOUND: tuple[Rewrite, ...] = (LinearAsConvolution(), ExtremesAsPools(), ReflectBySlices())
"""Of what Vela takes, and whose command stream computes something else; none of them can be left out."""

REWRITES: tuple[Rewrite, ...] = (*TO_FIT, *TO_SPARE, *TO_COST_LESS)
"""Those that can be left out."""
