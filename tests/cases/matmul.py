"""Rows for `micronpu.ops.matmul`."""

from micronpu.ops.matmul import BatchMatmul
from tests.cases import c8, case, i8, q

CASES = [
    *(
        case(BatchMatmul(), x=i8(b, m, k, scale=0.05, zero=0), z=i8(b, k, n, scale=0.02, zero=0), out=q(0.1, 3))
        for b, m, k, n in [
            (1, 1, 1, 1),
            (1, 1, 17, 1),
            (1, 5, 1, 3),
            (1, 7, 8, 9),
            (2, 3, 16, 8),
            (3, 4, 33, 5),
            (8, 1, 64, 7),
            (1, 9, 300, 2),
        ]
    ),
    *(
        case(BatchMatmul(), x=i8(2, 5, 9, scale=sx, zero=zx), z=i8(2, 9, 7, scale=sz, zero=zz), out=q(sy, zy))
        for zx, zz, zy in [(0, 0, 0), (-128, 127, -128), (127, 127, 5), (-3, 9, 127)]
        for sx, sz, sy in [
            (0.05, 0.02, 0.05),
            (0.1, 0.3, 0.15),
            (1e-3, 1e-3, 1e-6),
            (30.0, 1e-4, 1.0),
            (3.0, 7.0, 999.0),
        ]
    ),
    case(BatchMatmul(), x=i8(1, 4, 8), z=c8(1, 8, 6, scale=0.01), out=q(0.07, 2), name="constant second"),
    case(BatchMatmul(), x=c8(1, 4, 8, scale=0.01), z=i8(1, 8, 6), out=q(0.07, 2), name="constant first"),
]
