"""Rows for `micronpu.ops.quantization`.  64 x 4 elements hold every int8 value."""

from micronpu.ops.quantization import Requantize
from tests.cases import case, i8, q

CASES = [
    *(
        case(Requantize(), x=i8(64, 4, scale=scale, zero=zero), out=q(*out))
        for scale, zero, out in [
            (0.05, -3, (0.02, 7)),
            (0.05, -3, (0.05, -3)),
            (0.05, 127, (0.05, -128)),
            (0.02, -128, (0.05, 127)),
            (0.1, 0, (0.2, 0)),
            (30.0, -128, (30.0, 127)),
            (30.0, 5, (1e-6, 5)),
            (1e-6, 5, (30.0, 5)),
            (1e-6, 5, (1e-6, -5)),
            (1 / 256, -128, (0.0123, -128)),
        ]
    ),
    *(
        case(Requantize(), x=i8(*shape), out=q(0.03, 9))
        for shape in [(1,), (17,), (2, 9), (1, 3, 7), (1, 4, 1, 8), (2, 1, 3, 1, 5)]
    ),
]
