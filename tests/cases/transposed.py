"""Rows for `micronpu.ops.convolution`."""

from micronpu.ir.window import Activation, Padding2d
from micronpu.ops.convolution import TransposeConv2d
from tests.cases import b32, case, i8, q, w8

FUSED = [a for a in Activation if a.can_fuse]


def same(x: tuple[int, int], kernel: tuple[int, int], stride: tuple[int, int]) -> Padding2d:
    """What LiteRT's SAME crops off a result that is ``stride`` times as large as x."""
    return Padding2d.same((x[0] * stride[0], x[1] * stride[1]), kernel, stride)


CASES = [
    *(
        case(TransposeConv2d(stride), x=i8(1, 4, 3, 5, zero=-3), weight=w8(6, *kernel, 5, axis=0), out=q(0.3, 7))
        for kernel, stride in [
            ((1, 1), (1, 1)),
            ((3, 3), (1, 1)),
            ((3, 3), (2, 2)),
            ((2, 2), (2, 2)),
            ((4, 3), (2, 1)),
            ((1, 5), (1, 2)),
            ((1, 1), (2, 2)),
            ((2, 3), (3, 4)),
        ]
    ),
    *(
        case(
            TransposeConv2d(stride, same((4, 3), kernel, stride)),
            x=i8(1, 4, 3, 5, zero=-3),
            weight=w8(6, *kernel, 5, axis=0),
            out=q(0.3, 7),
            name="same",
        )
        for kernel, stride in [((4, 4), (2, 2)), ((3, 3), (2, 2)), ((3, 3), (1, 1)), ((2, 5), (1, 2)), ((6, 2), (2, 2))]
    ),
    *(
        case(TransposeConv2d((2, 2)), x=i8(2, 3, 2, c, zero=9), weight=w8(o, 3, 3, c, axis=0), out=q(0.3))
        for c, o in [(1, 1), (1, 8), (7, 9), (8, 8), (17, 1), (9, 17)]
    ),
    *(
        case(TransposeConv2d((2, 2)), x=i8(1, 3, 3, 4, zero=zx), weight=w8(4, 3, 3, 4), out=q(0.2, zy))
        for zx, zy in [(-128, 127), (127, -128), (0, 0)]
    ),
    *(
        case(TransposeConv2d((2, 2), activation=a), x=i8(1, 3, 3, 4), weight=w8(4, 3, 3, 4, axis=0), out=q(0.1, -20))
        for a in FUSED
    ),
    case(TransposeConv2d((2, 2)), x=i8(1, 3, 3, 4, scale=30), weight=w8(4, 3, 3, 4, scale=30), out=q(30.0)),
    case(TransposeConv2d((2, 2)), x=i8(1, 3, 3, 4, scale=1e-6), weight=w8(4, 3, 3, 4, scale=1e-6), out=q(30.0)),
    case(
        TransposeConv2d((2, 2)),
        x=i8(1, 4, 4, 3),
        weight=w8(4, 3, 3, 3, axis=0, scale=[1e-6, 1e-3, 0.02, 30.0]),
        out=q(0.2, 3),
        name="scales of channels far apart",
    ),
    case(TransposeConv2d((2, 2)), x=i8(1, 4, 4, 3), weight=w8(4, 2, 2, 3, values=0), bias=b32(2**30), out=q(1e4)),
    case(
        TransposeConv2d((1, 1)),
        x=i8(1, 4, 4, 64, zero=-128),
        weight=w8(4, 3, 3, 64, values=-127),
        bias=b32(-(2**30)),
        out=q(900.0),
        name="largest accumulators",
    ),
]
