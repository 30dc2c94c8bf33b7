"""Rows for `micronpu.ops.matmul`."""

from micronpu.ir.window import Activation
from micronpu.ops.matmul import FullyConnected
from tests.cases import b32, case, i8, q, w8

CASES = [
    case(FullyConnected(), x=i8(1, 10), weight=w8(4, 10), out=q(0.2, 3)),
    case(FullyConnected(), x=i8(1, 10), weight=w8(4, 10, axis=0), out=q(0.2, 3)),
    # rank 1 to 5
    *(
        case(FullyConnected(), x=i8(*lead, 9, zero=-3), weight=w8(8, 9, axis=0), out=q(0.2, 3))
        for lead in [(), (5,), (2, 3), (1, 4, 2), (2, 1, 3, 2), (1, 1), (1, 1, 1)]
    ),
    *(
        case(FullyConnected(), x=i8(2, i, zero=5), weight=w8(o, i, axis=0), out=q(0.2, -7))
        for i, o in [(1, 1), (1, 8), (7, 9), (8, 8), (9, 7), (17, 1), (17, 17), (640, 10)]
    ),
    *(case(FullyConnected(a), x=i8(3, 8), weight=w8(9, 8, axis=0), out=q(0.05, -20)) for a in Activation if a.can_fuse),
    *(
        case(FullyConnected(), x=i8(2, 8, zero=zx), weight=w8(8, 8), out=q(0.2, zy))
        for zx, zy in [(-128, -128), (127, 127), (-128, 127), (127, -128)]
    ),
    case(FullyConnected(), x=i8(2, 8, scale=1e-6), weight=w8(8, 8, scale=1e-6), out=q(30.0), name="all zero"),
    case(FullyConnected(), x=i8(2, 8, scale=30), weight=w8(8, 8, scale=30), out=q(30.0), name="left shift"),
    case(FullyConnected(), x=i8(2, 8, scale=1e-6), weight=w8(8, 8, scale=0.02), out=q(1e-6, 9)),
    case(
        FullyConnected(),
        x=i8(2, 8),
        weight=w8(4, 8, axis=0, scale=[1e-6, 1e-3, 0.02, 30.0]),
        out=q(0.2),
        name="scales of channels far apart",
    ),
    case(
        FullyConnected(),
        x=i8(1, 640, zero=-128),
        weight=w8(2, 640, values=-127),
        bias=b32(-(2**30)),
        out=q(900.0),
        name="largest accumulators",
    ),
    case(FullyConnected(), x=i8(2, 8), weight=w8(3, 8, values=0), bias=b32(2**30), out=q(1e4), name="dead"),
    case(FullyConnected(), x=i8(2, 8), weight=w8(3, 8), bias=b32(0), out=q(0.1), name="no bias"),
]
