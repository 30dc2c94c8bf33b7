"""Rows for `micronpu.ops.indices` and `micronpu.ops.indices`."""

from micronpu.ops.indices import ArgMax, GatherRows, ScatterRows
from tests.cases import c8, case, i8, i16, index

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
    case(GatherRows(), indices=index(5, count=11), table=i8(11, 3, zero=-128), name="computed"),
    case(GatherRows(), indices=index(300, count=70), table=i16(70, 1), name="computed, int16"),
    *(
        case(ScatterRows(), table=x, indices=index(count, count=x.shape[0], different=True), rows=rows)
        for x, count in [(i8(1, 1), 1), (i8(9, 16, zero=7), 1), (i8(33, 3, zero=-128), 33), (i16(5, 9), 4)]
        for rows in [x.with_shape((count, x.channels))]
    ),
]
