"""Rows for `micronpu.ops.convolution`."""

from tests.cases import b32, case, i8, q, w8

from micronpu.ops.convolution import Conv2d, DepthwiseConv2d
from micronpu.ops.fused import Padding2d

CASES = [
    case(Conv2d(), x=i8(1, 7, 5, 9), weight=w8(8, 3, 3, 9, axis=0), out=q(0.6, 3)),
    case(Conv2d(padding=Padding2d(1, 0, 2, 1)), x=i8(1, 7, 5, 9), weight=w8(8, 3, 3, 9), bias=b32(70), out=q(0.6, 3)),
    case(DepthwiseConv2d(), x=i8(1, 7, 5, 9), weight=w8(1, 3, 3, 9, axis=3), out=q(0.2, 3)),
]
