"""Rows for `micronpu.ops.activation`.  64 x 4 elements hold every int8 value."""

from micronpu.ir.window import Activation
from micronpu.ops.activation import Sigmoid, Tanh
from micronpu.ops.clamps import Clamp, Relu
from tests.cases import case, i8, q

SHAPES = [(), (1,), (17,), (2, 9), (1, 3, 7), (1, 4, 1, 8), (2, 1, 3, 1, 5)]
ALL_QPARAMS = [
    (1e-6, 0),
    (1e-6, 127),
    (0.004, -128),
    (0.02, -3),
    (0.05, 127),
    (0.3, -128),
    (1.0, 0),
    (30.0, -128),
    (30.0, 9),
]
CLAMPS = [a for a in Activation if a is not Activation.NONE]

CASES = [
    *(
        case(Relu(kind), x=i8(64, 4, scale=scale, zero=zero), out=q(*out))
        for kind in CLAMPS
        for scale, zero, out in [
            (0.05, -3, (0.05, -3)),
            (0.05, 0, (0.03, -128)),
            (0.05, 127, (0.001, -128)),
            (0.02, -128, (6 / 255, -128)),
            (30.0, 5, (30.0, 127)),
            (30.0, 5, (0.1, -100)),
            (1e-6, -5, (30.0, 7)),
            (1e-6, -5, (1e-6, -128)),
        ]
    ),
    *(case(Relu(), x=i8(*shape), out=q(0.04, -128)) for shape in SHAPES),
    *(
        case(Clamp(low, high), x=i8(64, 4, scale=scale, zero=zero))
        for low, high in [(-0.5, 0.5), (0.1, None), (None, 2.5), (-1e9, 1e9), (3.0, 3.0), (0.0, 4.0)]
        for scale, zero in [(0.05, -3), (0.02, 127), (30.0, -128), (1e-6, 0)]
    ),
    *(case(Clamp(-0.3, 0.9), x=i8(*shape, zero=4)) for shape in SHAPES),
    case(Clamp(), x=i8(64, 4), name="no bounds"),
    *(case(op(), x=i8(64, 4, scale=scale, zero=zero)) for op in (Sigmoid, Tanh) for scale, zero in ALL_QPARAMS),
    *(case(op(), x=i8(*shape, zero=-4)) for op in (Sigmoid, Tanh) for shape in SHAPES),
]
