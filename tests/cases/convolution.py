"""Rows for `micronpu.ops.convolution`."""

from micronpu.ir.window import Activation, Padding2d
from micronpu.ops.convolution import Conv2d, DepthwiseConv2d
from tests.cases import b32, case, i8, q, w8

SAME_7X5 = Padding2d.same((7, 5), (3, 3), (1, 1))
FUSED = [a for a in Activation if a.can_fuse]

REGULAR = [
    case(Conv2d(), x=i8(1, 7, 5, 9), weight=w8(8, 3, 3, 9), out=q(0.6, 3)),
    case(Conv2d(), x=i8(1, 7, 5, 9), weight=w8(8, 3, 3, 9, axis=0), out=q(0.6, 3)),
    # channels around 8, in and out
    *(
        case(Conv2d(), x=i8(1, 4, 3, c, zero=5), weight=w8(o, 2, 2, c, axis=0), out=q(0.3, -7))
        for c, o in [(1, 1), (1, 8), (7, 9), (8, 7), (8, 8), (9, 1), (17, 8), (8, 17), (17, 17)]
    ),
    # kernels, among them one as large as the input and one that only padding makes room for
    *(
        case(Conv2d(), x=i8(1, 7, 5, 3, zero=-128), weight=w8(4, *kernel, 3, axis=0), out=q(0.3, 10))
        for kernel in [(1, 1), (1, 5), (7, 1), (2, 4), (7, 5)]
    ),
    case(Conv2d(padding=Padding2d(1, 2, 0, 3)), x=i8(1, 2, 2, 3), weight=w8(4, 5, 5, 3), out=q(0.3)),
    # strides and dilations
    *(
        case(Conv2d(s, dilation=d), x=i8(1, 9, 8, 3, zero=20), weight=w8(5, 3, 2, 3, axis=0), out=q(0.3, -1))
        for s, d in [((2, 1), (1, 1)), ((1, 3), (1, 1)), ((2, 2), (1, 1)), ((1, 1), (2, 3)), ((2, 3), (3, 2))]
    ),
    # padding: SAME, the symmetric padding of PyTorch that is not SAME with a stride, and any other
    case(Conv2d(padding=SAME_7X5), x=i8(1, 7, 5, 9, zero=-128), weight=w8(8, 3, 3, 9, axis=0), out=q(0.6, 3)),
    case(
        Conv2d((2, 2), Padding2d.same((8, 6), (3, 3), (2, 2))),
        x=i8(1, 8, 6, 3, zero=40),
        weight=w8(8, 3, 3, 3, axis=0),
        out=q(0.4),
        name="same, the odd one behind",
    ),
    case(Conv2d((2, 2), Padding2d.symmetric(1, 1)), x=i8(1, 8, 6, 3, zero=40), weight=w8(8, 3, 3, 3), out=q(0.4)),
    case(Conv2d(padding=Padding2d(0, 2, 3, 1)), x=i8(1, 7, 5, 3, zero=127), weight=w8(8, 3, 3, 3), out=q(0.4)),
    case(
        Conv2d((2, 2), Padding2d.same((9, 9), (3, 3), (2, 2), (2, 2)), (2, 2)),
        x=i8(1, 9, 9, 3, zero=-9),
        weight=w8(8, 3, 3, 3, axis=0),
        out=q(0.4),
        name="same with stride and dilation",
    ),
    case(
        Conv2d(dilation=(2, 2), padding=Padding2d(3, 1, 0, 2)),
        x=i8(1, 6, 6, 3, zero=11),
        weight=w8(8, 3, 3, 3, axis=0),
        out=q(0.4),
    ),
    # batch and sizes of 1
    case(Conv2d(), x=i8(2, 4, 4, 7), weight=w8(9, 3, 3, 7, axis=0), out=q(0.4)),
    case(Conv2d(), x=i8(1, 1, 1, 8), weight=w8(8, 1, 1, 8, axis=0), out=q(0.2)),
    case(Conv2d(), x=i8(2, 1, 6, 1), weight=w8(1, 1, 3, 1), out=q(0.1)),
    # fused activations, on grids where their bounds lie inside, outside, and on the edge
    *(case(Conv2d(activation=a), x=i8(1, 4, 4, 3), weight=w8(8, 3, 3, 3, axis=0), out=q(0.1, -20)) for a in FUSED),
    *(case(Conv2d(activation=a), x=i8(1, 4, 4, 3), weight=w8(8, 3, 3, 3, axis=0), out=q(0.01, -128)) for a in FUSED),
    *(case(Conv2d(activation=a), x=i8(1, 4, 4, 3), weight=w8(8, 3, 3, 3), out=q(6 / 255, -128)) for a in FUSED),
    *(case(Conv2d(activation=a), x=i8(1, 4, 4, 3), weight=w8(8, 3, 3, 3), out=q(30.0, 127)) for a in FUSED),
    # scales and zero points
    *(
        case(Conv2d(), x=i8(1, 5, 5, 3, zero=zx), weight=w8(8, 3, 3, 3, axis=0), out=q(0.2, zy))
        for zx, zy in [(-128, -128), (127, 127), (-128, 127), (127, -128)]
    ),
    case(Conv2d(), x=i8(1, 4, 4, 3, scale=1e-6), weight=w8(8, 3, 3, 3, scale=1e-6), out=q(30.0), name="all zero"),
    case(Conv2d(), x=i8(1, 4, 4, 3, scale=30), weight=w8(8, 3, 3, 3, scale=30), out=q(30.0), name="left shift"),
    case(Conv2d(), x=i8(1, 4, 4, 3, scale=30), weight=w8(8, 3, 3, 3, scale=1e-6), out=q(1e-6), name="saturates"),
    case(Conv2d(), x=i8(1, 4, 4, 3, scale=1e-6), weight=w8(8, 3, 3, 3, scale=0.01), out=q(1e-6, 3)),
    case(
        Conv2d(),
        x=i8(1, 4, 4, 3),
        weight=w8(4, 3, 3, 3, axis=0, scale=[1e-6, 1e-3, 0.02, 30.0]),
        out=q(0.2, 3),
        name="scales of channels far apart",
    ),
    case(
        Conv2d(),
        x=i8(1, 4, 4, 64, zero=-128),
        weight=w8(4, 3, 3, 64, values=-127),
        bias=b32(-(2**30)),
        out=q(900.0),
        name="largest accumulators",
    ),
    case(Conv2d(), x=i8(1, 4, 4, 3), weight=w8(4, 3, 3, 3, axis=0, values=0), bias=b32(2**30), out=q(1e4), name="dead"),
    case(Conv2d(), x=i8(1, 4, 4, 3), weight=w8(8, 3, 3, 3), bias=b32(0), out=q(0.2), name="no bias"),
    # groups
    case(Conv2d(), x=i8(1, 4, 4, 6), weight=w8(4, 3, 3, 3, axis=0), out=q(0.2), name="2 groups"),
    case(Conv2d((2, 1)), x=i8(1, 4, 4, 9, zero=9), weight=w8(6, 3, 3, 3, axis=0), out=q(0.2), name="3 groups"),
]

DEPTHWISE = [
    *(
        case(DepthwiseConv2d(), x=i8(1, 5, 4, c, zero=-3), weight=w8(1, 3, 3, c, axis=3), out=q(0.1, 4))
        for c in (1, 7, 8, 9, 17)
    ),
    case(DepthwiseConv2d(), x=i8(1, 5, 4, 9, zero=-3), weight=w8(1, 3, 3, 9), out=q(0.1, 4)),
    *(
        case(DepthwiseConv2d(), x=i8(1, 5, 4, 3, zero=7), weight=w8(1, 3, 3, 3 * m, axis=3), out=q(0.1, 4))
        for m in (2, 3, 8)
    ),
    case(DepthwiseConv2d(padding=SAME_7X5), x=i8(1, 7, 5, 8, zero=-128), weight=w8(1, 3, 3, 8, axis=3), out=q(0.1)),
    *(
        case(DepthwiseConv2d(s, dilation=d), x=i8(1, 9, 8, 3, zero=20), weight=w8(1, 3, 2, 3, axis=3), out=q(0.1, -1))
        for s, d in [((2, 2), (1, 1)), ((3, 3), (1, 1)), ((1, 1), (2, 3)), ((2, 2), (3, 2))]
    ),
    case(DepthwiseConv2d((2, 2), Padding2d(1, 1, 1, 1)), x=i8(1, 8, 6, 8), weight=w8(1, 3, 3, 8, axis=3), out=q(0.1)),
    case(
        DepthwiseConv2d((2, 2), Padding2d.same((8, 6), (3, 3), (2, 2))),
        x=i8(1, 8, 6, 8, zero=100),
        weight=w8(1, 3, 3, 8, axis=3),
        out=q(0.1),
        name="same, the odd one behind",
    ),
    case(DepthwiseConv2d(padding=Padding2d(2, 0, 1, 3)), x=i8(1, 4, 4, 8, zero=9), weight=w8(1, 3, 3, 8), out=q(0.1)),
    case(DepthwiseConv2d(), x=i8(2, 4, 4, 7), weight=w8(1, 1, 1, 7, axis=3), out=q(0.05)),
    case(DepthwiseConv2d(), x=i8(1, 1, 1, 8), weight=w8(1, 1, 1, 8), out=q(0.05)),
    *(
        case(DepthwiseConv2d(activation=a), x=i8(1, 4, 4, 8), weight=w8(1, 3, 3, 8, axis=3), out=q(0.05, -20))
        for a in FUSED
    ),
    *(
        case(DepthwiseConv2d(), x=i8(1, 4, 4, 8, zero=zx), weight=w8(1, 3, 3, 8, axis=3), out=q(0.1, zy))
        for zx, zy in [(-128, 127), (127, -128)]
    ),
    case(DepthwiseConv2d(), x=i8(1, 4, 4, 3, scale=30), weight=w8(1, 3, 3, 3, scale=30), out=q(30.0)),
    case(DepthwiseConv2d(), x=i8(1, 4, 4, 3, scale=1e-6), weight=w8(1, 3, 3, 3, scale=1e-6), out=q(30.0)),
    case(
        DepthwiseConv2d(), x=i8(1, 4, 4, 3), weight=w8(1, 3, 3, 3, values=0), bias=b32(2**30), out=q(1e4), name="dead"
    ),
]

CASES = [*REGULAR, *DEPTHWISE]
