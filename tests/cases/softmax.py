"""Rows for `micronpu.ops.softmax`."""

from micronpu.ops.softmax import Softmax
from tests.cases import case, i8

CASES = [
    *(case(Softmax(), x=i8(*shape)) for shape in [(10,), (1, 1), (4, 7), (4, 8), (4, 9), (1, 17), (2, 3, 5)]),
    *(case(Softmax(), x=i8(*shape)) for shape in [(1, 3, 2, 5), (2, 1, 3, 1, 4), (3, 511)]),
    *(
        case(Softmax(), x=i8(16, 64, scale=scale, zero=zero))
        for scale in (1e-6, 1e-4, 0.004, 0.02, 0.1, 0.5, 1.0, 30.0)
        for zero in (-128, 127)
    ),
    # An assertion in LiteRT ends the process where exponentials add up to 512 or more, as they do in the other samples.
    case(Softmax(), x=i8(1, 2040, scale=0.1), litert_samples=(2, 4)),
]
