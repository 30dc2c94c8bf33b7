"""Rows for `micronpu.ops.elementwise`."""

from tests.cases import c8, case, i8, q

from micronpu.ops.elementwise import Add
from micronpu.ops.fused import Activation

CASES = [
    case(Add(), x=i8(1, 7, 5, 9, scale=0.02, zero=-3), z=i8(1, 7, 5, 9, scale=0.05, zero=4), out=q(0.06, 1)),
    *(case(Add(a), x=i8(2, 8), z=i8(2, 8, scale=0.11, zero=127), out=q(0.05, -128)) for a in Activation if a.can_fuse),
    case(Add(), x=i8(3, 9), z=c8(1, scale=0.03, zero=-128, values=127), out=q(0.07, 2)),
]
