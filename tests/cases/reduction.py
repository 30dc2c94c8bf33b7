"""Rows for `micronpu.ops.reduction`."""

from micronpu.ops.reduction import Amax, Amin, Mean
from tests.cases import case, i8

AXES = [
    ((9,), (0,)),
    ((1,), (0,)),
    ((3, 4), (1,)),
    ((3, 4), (0, 1)),
    ((2, 3, 5), (0, 2)),
    ((2, 7, 5, 9), (1, 2)),
    ((1, 7, 5, 9), (3,)),
    ((1, 1, 1, 8), (1, 2)),
    ((2, 3, 4, 5), (1,)),
    ((2, 3, 2, 2, 3), (1, 3)),
    ((2, 3, 2, 2, 3), (0, 1, 2, 3, 4)),
]

CASES = [
    *(case(Mean(axes, keep), x=i8(*shape, zero=-3)) for shape, axes in AXES for keep in (False, True)),
    *(
        case(Mean((1, 2)), x=i8(1, 5, 5, 8, scale=scale, zero=zero))
        for scale, zero in [(1e-6, -128), (1e-6, 127), (30.0, -128), (30.0, 127), (0.02, 0)]
    ),
    *(case(Mean((1,)), x=i8(64, n, zero=1), name=f"{n} elements") for n in (2, 3, 4, 31, 32, 33, 100, 256)),
    case(Mean((0,)), x=i8(16384, 1, zero=-128), name="many elements"),
]

CASES += [
    case(op(axes, keep), x=i8(*shape, zero=-3)) for op in (Amax, Amin) for shape, axes in AXES for keep in (False, True)
]
