"""Rows for `micronpu.ops.indices`."""

from micronpu.ops.indices import ArgMax, GatherRows
from tests.cases import c8, case, i8, index

CASES = [
    *(
        case(ArgMax(smallest), x=i8(*shape, zero=-7))
        for smallest in (False, True)
        for shape in [(1, 1), (256,), (1, 127), (3, 128), (1, 5, 4, 10), (2, 1, 3, 2, 9)]
    ),
    case(GatherRows(), indices=index(1, 8, count=32), table=c8(32, 16, scale=0.02, zero=5)),
    case(GatherRows(), indices=index(1, count=1), table=c8(1, 1)),
    case(GatherRows(), indices=index(7, count=300), table=c8(300, 3, zero=-128)),
    case(GatherRows(), indices=index(2, 3, 2, count=2), table=c8(2, 9)),
]
