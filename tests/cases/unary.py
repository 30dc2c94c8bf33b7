"""Rows for `micronpu.ops.unary` and the rectifiers of `micronpu.ops.activation`.  256 elements are every int8 value."""

from micronpu.ops.activation import HardSwish, LeakyRelu, Prelu
from micronpu.ops.unary import Abs, Exp, Log, Neg, Rsqrt
from tests.cases import c8, case, i8, q

SHAPES = [(1,), (17,), (2, 9), (1, 3, 7), (1, 4, 1, 8), (2, 1, 3, 1, 5), (2, 1, 3, 2, 1, 5)]
# Scale and zero point of the operand, scale and zero point of the result.
ALL_QPARAMS = [
    (0.05, 0, 0.05, 0),
    (0.05, -3, 0.025, -128),
    (0.1, 127, 0.15, 5),
    (0.02, -128, 0.04, 127),
    (0.15, 9, 0.1, -9),
    (0.3, -128, 0.0123, -128),
    (1.0, 100, 0.7, -100),
    (30.0, 0, 30.0, 0),
    (30.0, -128, 0.1, -128),
    (1e-6, 127, 1e-6, -128),
    (1e-6, 5, 30.0, 7),
    (0.004, -128, 1 / 256, -128),
]

CASES = [
    *(
        case(op, x=i8(256, scale=sx, zero=zx), out=q(sy, zy))
        for op in (Abs(), Neg(), LeakyRelu(), LeakyRelu(0.3), LeakyRelu(0.0), LeakyRelu(1.5))
        for sx, zx, sy, zy in ALL_QPARAMS
    ),
    *(
        case(op, x=i8(*shape, zero=-4), out=q(0.06, 3))
        for op in (Abs(), Neg(), LeakyRelu(0.1), HardSwish(), Rsqrt(), Log())
        for shape in SHAPES
    ),
    *(case(Exp(), x=i8(*shape, scale=0.01), out=q(0.02, -128)) for shape in SHAPES),
    # The largest argument times the scale of the result stays within int32, as `Exp.build` demands.
    *(
        case(Exp(), x=i8(256, scale=sx, zero=zx), out=q(sy, zy))
        for sx, zx, sy, zy in [
            (0.05, 0, 0.05, -128),
            (0.05, 127, 1 / 256, -128),
            (0.02, -128, 0.7, -128),
            (0.05, -128, 1000.0, -128),
            (1e-6, 3, 0.01, 0),
            (0.1, 20, 0.3, 127),
            (30.0, 127, 0.01, -128),
        ]
    ),
    *(
        case(op, x=i8(256, scale=sx, zero=zx), out=q(sy, zy))
        for op in (Log(), Rsqrt())
        for sx, zx, sy, zy in [
            (0.05, -128, 0.03, 10),
            (0.05, -128, 0.02, -128),
            (1.0, -128, 1 / 256, -128),
            (1e-6, -128, 0.1, 127),
            (1e-6, -128, 10.0, -128),
            (30.0, -128, 0.001, -128),
            (0.1, -127, 0.05, 0),
            (0.1, 0, 0.05, -20),
            (0.3, 127, 0.04, 3),
            (0.0123, 100, 0.3, -128),
        ]
    ),
    *(
        case(HardSwish(), x=i8(256, scale=sx, zero=zx), out=q(sy, zy))
        for sx, zx, sy, zy in [
            (0.05, 0, 0.03, -116),
            (0.05, -128, 0.05, -128),
            (0.02, 127, 0.004, 127),
            (0.3, -3, 0.3, -120),
            (1.0, 60, 0.9, 40),
            (30.0, 0, 30.0, 0),
            (30.0, 0, 0.25, -128),
            (1e-6, 0, 1e-6, 0),
            (1e-3, 5, 1e-2, -5),
            (6 / 255, -128, 6 / 255, -128),
        ]
    ),
    *(
        case(Prelu(), x=i8(64, 4, scale=sx, zero=zx), slope=c8(channels, scale=ss, zero=zs), out=q(sy, zy))
        for channels in (1, 4)
        for ss, zs in [(0.002, 0), (0.01, -128), (0.05, 9)]
        for sx, zx, sy, zy in [(0.05, -3, 0.05, -100), (0.02, 127, 0.01, 0), (1.0, -128, 0.7, 3), (1e-6, 0, 30.0, 0)]
    ),
    # half a step for each product, of which float32 makes a little less
    case(Prelu(), x=i8(64, 4, scale=0.1, zero=100), slope=c8(4, scale=0.01), out=q(0.002)),
    *(case(Prelu(), x=i8(*shape), slope=c8(shape[-1], scale=0.004), out=q(0.04, 2)) for shape in SHAPES),
]
