"""Rows for `micronpu.ops.softmax`."""

from tests.cases import case, i8

from micronpu.ops.softmax import Softmax

CASES = [
    case(Softmax(), x=i8(1, 10)),
    case(Softmax(), x=i8(2, 3, 17, scale=0.2, zero=-128)),
]
