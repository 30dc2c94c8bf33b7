"""Rows for `micronpu.ops.tables.table`.  256 elements are every int8 value."""

import math

import numpy as np

from micronpu.ops.tables.table import LookupTable, table_entries
from tests.cases import case, i8, q

SHAPES = [(1,), (17,), (2, 9), (1, 3, 7), (1, 4, 1, 8), (2, 1, 3, 1, 5)]
RANDOM = tuple(int(v) for v in np.random.default_rng(0).integers(-128, 128, 256))
IDENTITY = tuple(range(-128, 128))


def table(function, x, y):
    return LookupTable(table_entries(function, x, y))


CASES = [
    *(case(LookupTable(RANDOM), x=i8(*shape, zero=-4), out=q(0.06, 3)) for shape in SHAPES),
    case(LookupTable(RANDOM), x=i8(256), out=q(0.1), name="every value"),
    case(LookupTable(IDENTITY), x=i8(256), out=q(0.05), name="identity"),
    case(LookupTable((7,) * 256), x=i8(256), out=q(0.05), name="one value"),
    case(LookupTable(IDENTITY[::-1]), x=i8(256), out=q(30.0, 127), name="backwards"),
    *(
        case(table(function, i8(256, scale=scale, zero=zero), out), x=i8(256, scale=scale, zero=zero), out=out)
        for function in (np.sin, np.sqrt, np.reciprocal, np.floor, lambda x: x > math.pi)
        for scale, zero, out in [(0.05, 0, q(0.01, -5)), (30.0, -128, q(1.0, 0)), (1e-6, 100, q(1 / 256, -128))]
    ),
]
