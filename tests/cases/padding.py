"""Rows for `micronpu.ops.tiling`."""

from micronpu.ops.tiling import ReflectPad
from tests.cases import case, i8

CASES = [
    *(
        case(ReflectPad(before, after), x=i8(*shape, scale=scale, zero=zero))
        for shape, before, after in [
            ((5,), (4,), (0,)),
            ((5,), (0,), (4,)),
            ((2,), (1,), (1,)),
            ((4, 3), (1, 0), (2, 2)),
            ((2, 3, 4), (0, 2, 1), (1, 0, 3)),
            ((1, 4, 5, 3), (0, 1, 3, 0), (0, 2, 1, 0)),
            ((1, 2, 2, 17), (0, 1, 1, 0), (0, 1, 1, 0)),
            ((1, 1, 3, 1), (0, 0, 0, 0), (0, 0, 0, 0)),
            ((2, 3, 4, 2, 5), (0, 1, 0, 1, 0), (1, 0, 2, 1, 0)),
        ]
        for scale, zero in [(1e-6, -128), (30.0, 5)]
    ),
]
