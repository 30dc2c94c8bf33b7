"""Rows for `micronpu.ops.elementwise`."""

from tests.cases import c8, case, i8, q

from micronpu.ops.elementwise import Add
from micronpu.ops.fused import Activation

BROADCASTS = [
    ((1, 4, 3, 9), (9,)),
    ((1, 4, 3, 9), (1,)),
    ((1, 4, 3, 9), (1, 1, 1, 9)),
    ((2, 4, 3, 1), (2, 1, 3, 7)),
    ((5, 1), (1, 4)),
    ((8,), (2, 3, 8)),
    ((2, 3, 1, 5), (3, 4, 5)),
    ((1, 2, 3, 4, 5), (1, 2, 3, 4, 5)),
    ((2, 1, 3, 1, 5), (3, 4, 1)),
    ((1,), (1,)),
    ((17,), (17,)),
]

CASES = [
    case(Add(), x=i8(1, 7, 5, 9, scale=0.02, zero=-3), z=i8(1, 7, 5, 9, scale=0.05, zero=4), out=q(0.06, 1)),
    *(case(Add(), x=i8(*x, scale=0.02, zero=-9), z=i8(*z, scale=0.07, zero=31), out=q(0.08, 2)) for x, z in BROADCASTS),
    *(
        case(Add(a), x=i8(4, 64, zero=zero), z=i8(4, 64, scale=0.11, zero=127), out=q(scale, out))
        for a in Activation
        if a.can_fuse
        for zero, scale, out in [(0, 0.05, -128), (-128, 0.02, 10), (3, 6 / 255, -128)]
    ),
    *(
        case(Add(), x=i8(4, 64, zero=zx), z=i8(4, 64, zero=zz), out=q(0.1, zy))
        for zx, zz, zy in [(-128, -128, -128), (127, 127, 127), (-128, 127, 0), (127, -128, -128), (-128, -128, 127)]
    ),
    *(
        case(Add(), x=i8(4, 64, scale=sx, zero=-7), z=i8(4, 64, scale=sz, zero=5), out=q(sy, 2))
        for sx, sz, sy in [
            (1e-6, 1e-6, 1e-6),
            (30.0, 30.0, 30.0),
            (30.0, 1e-6, 30.0),
            (1e-6, 30.0, 60.0),
            (1e-6, 1e-6, 30.0),
            (30.0, 0.02, 1e-3),
            (0.02, 0.04, 0.03),
        ]
    ),
    case(Add(), x=i8(3, 9), z=c8(1, scale=0.03, zero=-128, values=127), out=q(0.07, 2), name="constant number"),
    case(Add(), x=i8(1, 4, 3, 9), z=c8(9, scale=0.03, zero=4), out=q(0.07, 2), name="constant per channel"),
    case(Add(), x=c8(3, 9, scale=0.01, zero=4), z=i8(3, 9), out=q(0.07, 2), name="constant first"),
]
