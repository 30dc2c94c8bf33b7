"""Rows for `micronpu.ops.softmax`."""

from tests.cases import case, i8

from micronpu.ops.softmax import Softmax

CASES = [
    *(case(Softmax(), x=i8(*shape)) for shape in [(10,), (1, 1), (4, 7), (4, 8), (4, 9), (1, 17), (2, 3, 5)]),
    *(case(Softmax(), x=i8(*shape)) for shape in [(1, 3, 2, 5), (2, 1, 3, 1, 4), (1, 2040)]),
    *(
        case(Softmax(), x=i8(16, 64, scale=scale, zero=zero))
        for scale in (1e-6, 1e-4, 0.004, 0.02, 0.1, 0.5, 1.0, 30.0)
        for zero in (-128, 127)
    ),
]
