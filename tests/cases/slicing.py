"""Rows for `micronpu.ops.slicing`."""

from micronpu.ops.slicing import Slice
from tests.cases import case, i8

CASES = [
    *(
        case(Slice(begin, size), x=i8(*shape, scale=scale, zero=zero))
        for shape, begin, size in [
            ((5,), (0,), (5,)),
            ((5,), (4,), (1,)),
            ((4, 9), (1, 0), (2, 9)),
            ((4, 9), (3, 8), (1, 1)),
            ((2, 3, 4), (0, 1, 2), (2, 2, 1)),
            ((1, 7, 5, 17), (0, 0, 0, 8), (1, 7, 5, 9)),
            ((1, 7, 5, 16), (0, 2, 1, 0), (1, 4, 3, 8)),
            ((2, 4, 3, 7), (1, 0, 0, 6), (1, 4, 3, 1)),
            ((1, 2, 3, 4, 5), (0, 1, 0, 2, 3), (1, 1, 3, 2, 2)),
            ((1, 1, 1, 1), (0, 0, 0, 0), (1, 1, 1, 1)),
        ]
        for scale, zero in [(1e-6, -128), (30.0, 5)]
    ),
]
