"""Rows for `micronpu.ops.pooling`."""

from micronpu.ir.window import Padding2d
from micronpu.ops.pooling import AvgPool2d, MaxPool2d
from tests.cases import case, i8

KERNELS = [((2, 2), (2, 2)), ((3, 2), (2, 1)), ((1, 1), (1, 1)), ((1, 1), (2, 3)), ((7, 5), (7, 5)), ((2, 3), (1, 4))]
PADDINGS = [
    ((7, 5), (3, 3), (1, 1), Padding2d.same((7, 5), (3, 3), (1, 1))),
    ((8, 6), (3, 3), (2, 2), Padding2d.same((8, 6), (3, 3), (2, 2))),
    ((8, 6), (2, 3), (3, 1), Padding2d.same((8, 6), (2, 3), (3, 1))),
    ((8, 6), (3, 3), (2, 2), Padding2d.symmetric(1, 1)),
    ((5, 5), (3, 3), (1, 2), Padding2d(0, 1, 1, 0)),
    ((5, 5), (3, 4), (2, 1), Padding2d(1, 0, 2, 1)),
]

CASES = [
    *(
        case(pool(kernel, stride), x=i8(1, 7, 5, 9, scale=0.02, zero=-3))
        for pool in (MaxPool2d, AvgPool2d)
        for kernel, stride in KERNELS
    ),
    *(
        case(pool((2, 3), (1, 2)), x=i8(2, 4, 5, channels, zero=11))
        for pool in (MaxPool2d, AvgPool2d)
        for channels in (1, 7, 8, 17)
    ),
    *(
        case(pool((3, 3), (1, 1), Padding2d.symmetric(1, 1)), x=i8(1, 4, 4, 8, scale=scale, zero=zero))
        for pool in (MaxPool2d, AvgPool2d)
        for scale, zero in [(1e-6, -128), (1e-6, 127), (30.0, -128), (30.0, 127), (30.0, 0)]
    ),
    *(
        case(MaxPool2d(kernel, stride, padding), x=i8(1, *size, 9, zero=-5))
        for size, kernel, stride, padding in PADDINGS
    ),
    *(
        case(AvgPool2d(kernel, stride, padding, count), x=i8(1, *size, 9, zero=zero))
        for size, kernel, stride, padding in PADDINGS
        for count, zero in [(False, -5), (True, -128), (True, 100)]
        # LiteRT can leave out no padding but SAME
        if count or padding == Padding2d.same(size, kernel, stride)
    ),
    case(MaxPool2d((1, 1), (1, 1)), x=i8(1, 1, 1, 1)),
    case(AvgPool2d((1, 1), (1, 1)), x=i8(1, 1, 1, 1)),
    case(AvgPool2d((16, 16), (16, 16)), x=i8(1, 16, 16, 3, zero=-128), name="large window"),
    case(AvgPool2d((2, 1), (2, 1)), x=i8(1, 16, 16, 2, zero=-1), name="ties"),
    # the last window of ceil_mode, which is only partly filled
    *(
        case(pool(kernel, stride, Padding2d(0, over[0], 0, over[1])), x=i8(1, *size, 5, zero=-5), name="overhang")
        for pool in (MaxPool2d, AvgPool2d)
        for size, kernel, stride, over in [
            ((6, 6), (3, 3), (2, 2), (1, 1)),
            ((7, 5), (3, 2), (3, 4), (2, 1)),
            ((8, 9), (4, 4), (3, 3), (2, 1)),
        ]
    ),
    # padding on both sides that does not count
    *(
        case(AvgPool2d(kernel, stride, padding), x=i8(2, *size, 5, zero=zero), name="border")
        for size, kernel, stride, padding in [
            ((8, 8), (3, 3), (2, 2), Padding2d.symmetric(1, 1)),
            ((9, 6), (5, 4), (2, 3), Padding2d.symmetric(2, 2)),
            ((5, 7), (3, 5), (3, 2), Padding2d(1, 0, 2, 1)),
        ]
        for zero in (-128, 100)
    ),
    # picks elements
    case(MaxPool2d((1, 1), (2, 1)), x=i8(1, 7, 5, 3)),
]
