"""Rows for `micronpu.ops.pooling`."""

from tests.cases import case, i8

from micronpu.ops.fused import Padding2d
from micronpu.ops.pooling import AvgPool2d, MaxPool2d

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
    ),
    case(MaxPool2d((1, 1), (1, 1)), x=i8(1, 1, 1, 1)),
    case(AvgPool2d((1, 1), (1, 1)), x=i8(1, 1, 1, 1)),
    case(AvgPool2d((16, 16), (16, 16)), x=i8(1, 16, 16, 3, zero=-128), name="large window"),
    case(AvgPool2d((2, 1), (2, 1)), x=i8(1, 16, 16, 2, zero=-1), name="ties"),
]
