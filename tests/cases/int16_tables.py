"""Rows for functions of int16 numbers that are tables of 513 entries."""

import numpy as np

from micronpu.ir.types import QParams
from micronpu.ops.tables.table import LookupTable, wide_table_entries
from tests.cases import case, i16, q

FUNCTIONS = {
    "silu": lambda x: x / (1.0 + np.exp(-x)),
    "sine": np.sin,
    "reciprocal": lambda x: 1.0 / x,
    "saturates": lambda x: 1e6 * x,
    "no number": np.sqrt,
}

CASES = [
    case(
        LookupTable(wide_table_entries(function, i16(1, scale=scale), QParams.per_tensor(0.0002, 0))),
        x=i16(64, 64, scale=scale),
        out=q(0.0002),
        name=f"{name} {scale}",
    )
    for name, function, scale in [
        *((n, f, scale) for n, f in FUNCTIONS.items() for scale in (0.0003, 2**-15)),
        ("exponential", np.exp, 0.03),  # infinite for most of the upper half
    ]
]
