"""Rows for `micronpu.ops.elementwise`."""

from micronpu.ir.window import Activation
from micronpu.ops.elementwise import Add, Maximum, Minimum, Mul, Sub
from tests.cases import c8, case, i8, q

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

SCALES = [
    (1e-6, 1e-6, 1e-6),
    (30.0, 30.0, 30.0),
    (30.0, 1e-6, 30.0),
    (1e-6, 30.0, 60.0),
    (1e-6, 1e-6, 30.0),
    (30.0, 0.02, 1e-3),
    (0.02, 0.04, 0.03),
    (0.1, 0.3, 0.15),
    (1 / 256, 0.05, 0.05),
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
        for sx, sz, sy in SCALES[:7]
    ),
    case(Add(), x=i8(3, 9), z=c8(1, scale=0.03, zero=-128, values=127), out=q(0.07, 2), name="constant number"),
    case(Add(), x=i8(1, 4, 3, 9), z=c8(9, scale=0.03, zero=4), out=q(0.07, 2), name="constant per channel"),
    case(Add(), x=c8(3, 9, scale=0.01, zero=4), z=i8(3, 9), out=q(0.07, 2), name="constant first"),
]

CASES += [
    *(
        case(op, x=i8(*x, scale=0.02, zero=-9), z=i8(*z, scale=0.07, zero=31), out=q(scale, 2))
        for op, scale in ((Sub(), 0.08), (Mul(), 0.1))
        for x, z in BROADCASTS
    ),
    *(
        case(op(a), x=i8(4, 64, zero=zero), z=i8(4, 64, scale=0.11, zero=127), out=q(scale, out))
        for op in (Sub, Mul)
        for a in Activation
        if a.can_fuse
        for zero, scale, out in [(0, 0.05, -128), (-128, 0.02, 10), (3, 6 / 255, -128)]
    ),
    *(
        case(op, x=i8(4, 64, zero=zx), z=i8(4, 64, zero=zz), out=q(0.1, zy))
        for op in (Sub(), Mul())
        for zx, zz, zy in [(-128, -128, -128), (127, 127, 127), (-128, 127, 0), (127, -128, -128), (-128, -128, 127)]
    ),
    *(
        case(op, x=i8(4, 64, scale=sx, zero=-7), z=i8(4, 64, scale=sz, zero=5), out=q(sy, 2))
        for op in (Sub(), Mul())
        for sx, sz, sy in SCALES
    ),
    # Multipliers greater than 1, up to those whose shift overflows int32.
    *(
        case(Mul(), x=i8(4, 64, scale=sx, zero=3), z=i8(4, 64, scale=sz, zero=-128), out=q(sy, -1))
        for sx, sz, sy in [(1.0, 1.0, 0.3), (3.0, 0.5, 0.7), (100.0, 1.0, 1.0), (30.0, 30.0, 1e-3), (1.0, 1e-5, 1e-6)]
    ),
    *(
        case(op, x=i8(3, 9), z=c8(1, scale=0.03, zero=-128, values=127), out=q(0.3, 2), name="constant number")
        for op in (Sub(), Mul())
    ),
    *(
        case(op, x=c8(1, scale=1 / 255, zero=-128, values=127), z=i8(4, 64), out=q(0.05, 2), name="number first")
        for op in (Sub(), Mul())
    ),
    *(
        case(op, x=i8(1, 4, 3, 9), z=c8(9, scale=0.03, zero=4), out=q(0.2, 2), name="constant per channel")
        for op in (Sub(), Mul())
    ),
    *(case(op(), x=i8(*x, zero=-9), z=i8(*z, zero=-9)) for op in (Minimum, Maximum) for x, z in BROADCASTS),
    *(case(op(), x=i8(4, 64, zero=7), z=c8(1, zero=7, values=n)) for op in (Minimum, Maximum) for n in (-128, 0, 127)),
]
