"""Rows for `micronpu.ops.movement`."""

import math

from micronpu.ops.movement import Pad, Reshape, Transpose
from tests.cases import case, i8

CASES = [
    *(
        case(Reshape(new), x=i8(*old, zero=-3))
        for old, new in [
            ((12,), (3, 4)),
            ((3, 4), (12,)),
            ((3, 4), (3, 4)),
            ((1, 7, 5, 9), (1, 315)),
            ((2, 3, 4, 5), (6, 20)),
            ((1, 1, 1, 8), (8,)),
            ((2, 3, 4), (2, 1, 3, 1, 4)),
            ((1,), ()),
            ((1,), (1, 1, 1, 1, 1)),
            ((2, 1, 3, 1, 5), (30,)),
        ]
    ),
    *(
        case(Transpose(permutation), x=i8(*shape, zero=9))
        for shape, permutation in [
            ((5,), (0,)),
            ((3, 4), (1, 0)),
            ((2, 3, 4), (2, 0, 1)),
            ((2, 3, 4), (0, 2, 1)),
            ((1, 7, 5, 9), (0, 3, 1, 2)),
            ((2, 9, 7, 5), (0, 2, 3, 1)),
            ((2, 3, 4, 5), (3, 2, 1, 0)),
            ((1, 1, 1, 8), (0, 3, 1, 2)),
            ((2, 3, 4, 5, 2), (4, 0, 3, 1, 2)),
            ((1, 3, 1, 5, 2), (0, 1, 4, 2, 3)),
            ((2, 3, 4), (0, 1, 2)),
        ]
    ),
    *(
        case(Pad(before, after), x=i8(*shape, zero=zero))
        for shape, before, after in [
            ((5,), (2,), (0,)),
            ((3, 4), (0, 1), (2, 0)),
            ((2, 3, 4), (1, 0, 2), (0, 3, 1)),
            ((1, 4, 3, 7), (0, 1, 1, 0), (0, 1, 1, 0)),
            ((1, 4, 3, 7), (0, 0, 0, 0), (0, 0, 0, 1)),
            ((1, 4, 3, 7), (0, 0, 0, 0), (0, 0, 0, 0)),
            ((1, 1, 2, 1, 3), (0, 1, 0, 2, 0), (1, 0, 0, 0, 3)),
        ]
        for zero in (-128, 5)
    ),
    *(
        case(Pad((0, 1), (2, 0), value), x=i8(3, 4, scale=scale, zero=-9))
        for value in (1.0, -0.26, 1e9, -math.inf, math.inf)
        for scale in (0.1, 1e-6, 30.0)
    ),
]
