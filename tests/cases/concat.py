"""Rows for `micronpu.ops.slicing`."""

from micronpu.ops.slicing import Concat
from tests.cases import c8, case, i8

CASES = [
    case(Concat(0), tensors=[i8(5), i8(3)]),
    case(Concat(0), tensors=[i8(5)]),
    *(
        case(Concat(axis), tensors=[i8(*(n if i == axis else 2 for i in range(rank)), zero=-4) for n in (1, 3, 2)])
        for rank in (1, 2, 3, 4, 5)
        for axis in range(rank)
    ),
    *(case(Concat(3), tensors=[i8(1, 4, 3, a, zero=9), i8(1, 4, 3, b, zero=9)]) for a, b in [(7, 9), (8, 8), (1, 17)]),
    *(
        case(Concat(1), tensors=[i8(2, n, scale=scale, zero=zero) for n in (1, 2, 3, 4)])
        for scale, zero in [(1e-6, -128), (30.0, 127)]
    ),
    case(Concat(1), tensors=[i8(2, 3), c8(2, 4), i8(2, 1)], name="with a constant"),
]
