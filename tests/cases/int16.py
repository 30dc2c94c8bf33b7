"""Rows for operators on int16 activations, whose zero point is 0; weights are int8 and biases int64."""

from micronpu.ir.types import DType
from micronpu.ir.window import NO_PADDING, Activation, Padding2d
from micronpu.ops.activation import LeakyRelu, Sigmoid, Tanh
from micronpu.ops.clamps import Clamp, Relu
from micronpu.ops.convolution import Conv2d, DepthwiseConv2d, TransposeConv2d
from micronpu.ops.elementwise import Add, Maximum, Minimum, Mul, Sub
from micronpu.ops.matmul import BatchMatmul, FullyConnected
from micronpu.ops.movement import Pad, Reshape, Transpose
from micronpu.ops.pooling import AvgPool2d, MaxPool2d
from micronpu.ops.quantization import Requantize
from micronpu.ops.reduction import Amax, Amin, Mean
from micronpu.ops.resize import ResizeBilinear, ResizeNearest
from micronpu.ops.slicing import Concat, Slice
from micronpu.ops.softmax import Softmax
from micronpu.ops.tiling import ReflectPad
from micronpu.ops.unary import Abs, Exp, Log, Neg
from micronpu.targets.ethosu.rewrites.byte_products import BytesBatchMatmul, BytesConv2d
from tests.cases import b32, c16, case, i8, i16, q, w8

FUSED = [a for a in Activation if a.can_fuse]
SAME = Padding2d.same((7, 5), (3, 3), (1, 1))
RESIZES = [(False, False), (True, False), (False, True)]

CONVOLUTIONS = [
    case(Conv2d(), x=i16(1, 7, 5, 9), weight=w8(8, 3, 3, 9), out=q(0.004)),
    case(Conv2d(padding=SAME), x=i16(1, 7, 5, 9), weight=w8(8, 3, 3, 9, axis=0), out=q(0.004)),
    case(Conv2d(padding=SAME), x=i16(2, 7, 5, 9), weight=w8(7, 3, 3, 9, axis=0), out=q(0.0002), name="saturates"),
    case(Conv2d((2, 1), dilation=(1, 2)), x=i16(1, 9, 8, 3), weight=w8(5, 3, 2, 3, axis=0), out=q(0.002)),
    case(Conv2d((2, 2), Padding2d.symmetric(1, 1)), x=i16(1, 8, 6, 3), weight=w8(8, 3, 3, 3), out=q(0.004)),
    case(Conv2d(), x=i16(1, 2, 2, 300), weight=w8(3, 2, 2, 300, axis=0), out=q(0.02), name="more than 32 bits"),
    case(
        Conv2d(),
        x=i16(1, 2, 2, 3),
        weight=w8(4, 1, 1, 3, axis=0),
        bias=b32([2**37, -(2**37), 2**33, 5]),
        out=q(4.0),
        name="bias of 38 bits",
    ),
    *(
        case(Conv2d(activation=a), x=i16(1, 4, 4, 3), weight=w8(6, 3, 3, 3, axis=0), out=q(0.001), name=a.name)
        for a in FUSED
    ),
    *(
        case(BytesConv2d(activation=a, dtype=DType.INT16), x=i16(1, 2, 2, 9), weight=w8(6, 1, 1, 9, axis=0), out=q(y))
        for a, y in ((Activation.NONE, 0.0002), (Activation.RELU, 0.002), (Activation.RELU6, 0.002))
    ),
    case(BytesConv2d(dtype=DType.INT16), x=i16(2, 1, 1, 30), weight=w8(7, 1, 1, 30), out=q(0.002), name="per tensor"),
    *(
        case(
            Conv2d(), x=i16(1, 3, 3, 3, scale=s), weight=w8(6, 2, 2, 3, axis=0, scale=w), out=q(y), name=f"{s} {w} {y}"
        )
        for s, w, y in [(2**-15, 2**-7, 2**-15), (1e-5, 1e-4, 0.3), (0.3, 0.5, 0.005), (0.01, 0.02, 3e-5)]
    ),
    case(DepthwiseConv2d(), x=i16(1, 7, 5, 9), weight=w8(1, 3, 3, 9), out=q(0.002)),
    case(DepthwiseConv2d(padding=SAME), x=i16(1, 7, 5, 9), weight=w8(1, 3, 3, 9, axis=3), out=q(0.002)),
    case(DepthwiseConv2d((2, 2)), x=i16(1, 7, 5, 4), weight=w8(1, 3, 3, 8, axis=3), out=q(0.002), name="multiplier 2"),
    case(DepthwiseConv2d((2, 2)), x=i16(1, 7, 5, 1), weight=w8(1, 3, 3, 8, axis=3), out=q(0.002), name="of one"),
    *(
        case(DepthwiseConv2d(activation=a), x=i16(1, 4, 4, 3), weight=w8(1, 3, 3, 3, axis=3), out=q(0.001), name=a.name)
        for a in FUSED
    ),
    case(TransposeConv2d((2, 2)), x=i16(1, 4, 3, 5), weight=w8(6, 2, 2, 5, axis=0), out=q(0.002)),
    case(TransposeConv2d((1, 1)), x=i16(1, 4, 3, 5), weight=w8(6, 3, 3, 5), out=q(0.002)),
    case(
        TransposeConv2d((2, 2), Padding2d(0, 1, 0, 1)), x=i16(1, 4, 4, 5), weight=w8(6, 3, 3, 5, axis=0), out=q(0.002)
    ),
]

PRODUCTS = [
    *(
        case(FullyConnected(), x=i16(n, i), weight=w8(o, i), out=q(0.002))
        for n, i, o in [(1, 1, 1), (1, 64, 32), (8, 64, 7), (3, 7, 9)]
    ),
    case(FullyConnected(), x=i16(1, 64), weight=w8(32, 64, axis=0), out=q(0.002), name="per channel"),
    case(FullyConnected(), x=i16(1, 900), weight=w8(3, 900, axis=0), out=q(0.02), name="more than 32 bits"),
    case(FullyConnected(), x=i16(2, 3, 16), weight=w8(8, 16, axis=0), out=q(0.002), name="rank 3"),
    case(FullyConnected(), x=i16(1, 64), weight=w8(32, 64), out=q(0.00005), name="saturates"),
    *(case(FullyConnected(a), x=i16(2, 9), weight=w8(6, 9, axis=0), out=q(0.001), name=a.name) for a in FUSED),
    *(
        case(BatchMatmul(), x=i16(b, m, k), z=i16(b, k, n, scale=0.0001), out=q(0.002))
        for b, m, k, n in [(1, 1, 1, 1), (2, 8, 16, 8), (3, 5, 7, 9)]
    ),
    *(
        case(BytesBatchMatmul(), x=i16(2, 3, k), z=i16(2, k, 5), out=q(y), name=f"bytes {k} {y}")
        for k, y in [(1, 1e-7), (16, 1e-3), (70, 0.5)]
    ),
]

ADDITIONS = [
    *(
        case(op, x=i16(*x, scale=xs), z=i16(*z, scale=zs), out=q(ys), name=f"{x} {z} {xs} {zs} {ys}")
        for op in (Add(), Sub())
        for x, z, xs, zs, ys in [
            ((2, 3, 4, 5), (2, 3, 4, 5), 0.0003, 0.0001, 0.0004),
            ((1, 4, 4, 8), (1, 1, 1, 8), 0.0003, 0.02, 0.02),
            ((5, 1), (1, 7), 0.0003, 0.0003, 0.0003),
            ((9,), (9,), 2**-15, 2**-15, 2**-14),
            ((9,), (9,), 2**-12, 2**-15, 2**-13),
            ((64,), (64,), 0.3, 1e-6, 0.1),
            ((2, 1, 3, 1, 5), (2, 1, 3, 1, 5), 0.0003, 0.0001, 0.0004),
        ]
    ),
    *(case(op(a), x=i16(3, 7), z=i16(3, 7), out=q(0.0005), name=a.name) for op in (Add, Sub) for a in FUSED),
    case(Add(), x=i16(3, 7), z=c16(7), out=q(0.0005), name="constant"),
]

MULTIPLICATIONS = [
    *(
        case(Mul(), x=i16(*x, scale=xs), z=i16(*z, scale=zs), out=q(ys), name=f"{x} {z} {xs} {zs} {ys}")
        for x, z, xs, zs, ys in [
            ((2, 3, 4, 5), (2, 3, 4, 5), 0.0003, 0.0001, 0.001),
            ((1, 4, 4, 8), (1, 1, 1, 8), 0.0003, 0.0001, 0.00001),
            ((5, 1), (1, 7), 2**-15, 2**-15, 2**-15),
            ((64,), (64,), 0.3, 1e-4, 0.5),
        ]
    ),
    *(case(Mul(a), x=i16(3, 7), z=i16(3, 7), out=q(0.0005), name=a.name) for a in FUSED),
]

SELECTIONS = [
    case(op(), x=i16(*x), z=i16(*z), name=f"{x} {z}")
    for op in (Minimum, Maximum)
    for x, z in [((3, 7), (3, 7)), ((2, 4, 4, 8), (8,)), ((5, 1), (1, 7))]
]

CLAMPS = [
    *(
        case(Relu(kind), x=i16(3, 50, scale=xs), out=q(ys), name=f"{kind.name} {xs} {ys}")
        for kind in Activation
        if kind is not Activation.NONE
        for xs, ys in [(0.0003, 0.0003), (0.0003, 0.0001), (0.0001, 0.0007)]
        if kind not in (Activation.RELU_N1_TO_1, Activation.RELU_0_TO_1)
    ),
    *(
        case(Clamp(low, high), x=i16(3, 50), name=f"{low} {high}")
        for low, high in [(-0.5, 0.3), (0.0, 1.0), (-1.0, 1.0), (None, 2.0), (-3.0, None)]
    ),
    *(
        case(LeakyRelu(slope), x=i16(3, 50, scale=xs), out=q(ys), name=f"{slope} {xs} {ys}")
        for slope in (0.01, 0.1, 1.5)
        for xs, ys in [(0.0003, 0.0003), (0.0003, 0.0001), (2**-12, 2**-12)]
    ),
]

CURVES = [
    *(
        case(op(), x=i16(64, 64, scale=scale), name=f"{scale}")
        for op in (Sigmoid, Tanh)
        for scale in (0.0003, 2**-12, 2**-11, 2**-13, 2**-15, 0.0001, 1e-6, 0.01, 0.5)
    ),
    *(
        case(Softmax(), x=i16(*shape, scale=s))
        for shape in [(4, 10), (1, 1), (2, 3, 64), (1, 600)]
        for s in (0.0003, 1e-5)
    ),
    case(Softmax(), x=i16(4, 10, scale=2.0), name="coarse"),
    *(
        case(Exp(), x=i16(64, 64, scale=s), out=q(y), name=f"{s} {y}")
        for s, y in [(1e-4, 1e-3), (2e-5, 1e-4), (1e-5, 4e-5)]
    ),
    *(case(Log(), x=i16(64, 64, scale=s), out=q(y), name=f"{s} {y}") for s, y in [(1e-4, 3e-4), (1e-3, 1e-3)]),
    *(case(Abs(), x=i16(3, 50, scale=s), out=q(y), name=f"{s} {y}") for s, y in [(1e-4, 1e-4), (1e-3, 7e-4)]),
    *(case(Neg(), x=i16(3, 50, scale=s), out=q(y), name=f"{s} {y}") for s, y in [(1e-4, 1e-4), (1e-3, 7e-4)]),
]

POOLS = [
    *(
        case(pool(kernel, stride, padding), x=i16(1, 7, 5, 9))
        for pool in (MaxPool2d, AvgPool2d)
        for kernel, stride, padding in [
            ((2, 2), (2, 2), NO_PADDING),
            ((3, 3), (1, 1), SAME),
            ((7, 5), (1, 1), NO_PADDING),
            ((3, 2), (2, 1), NO_PADDING),
        ]
    ),
    *(
        case(op(axes, keep), x=i16(2, 4, 5, 6))
        for op in (Mean, Amax, Amin)
        for axes, keep in [((1, 2), True), ((1, 2), False), ((3,), True), ((0, 1, 2, 3), True)]
    ),
]

MOVEMENTS = [
    case(Concat(1), tensors=[i16(1, 2, 3), i16(1, 5, 3)]),
    case(Concat(3), tensors=[i16(1, 4, 4, 3), i16(1, 4, 4, 9), i16(1, 4, 4, 1)]),
    case(Pad((0, 1, 2, 0), (0, 1, 0, 3)), x=i16(1, 3, 4, 5)),
    case(Pad((0, 1, 2, 0), (0, 1, 0, 3), 0.5), x=i16(1, 3, 4, 5)),
    case(ReflectPad((0, 1, 2, 0), (0, 1, 0, 0)), x=i16(1, 3, 4, 5)),
    case(Slice((0, 1, 0), (1, 3, 4)), x=i16(1, 4, 5)),
    case(Reshape((4, 6)), x=i16(2, 3, 4)),
    *(case(Transpose(p), x=i16(*range(2, 2 + len(p)))) for p in [(1, 0), (0, 2, 1), (0, 3, 1, 2), (0, 2, 3, 1)]),
    *(case(ResizeNearest(s, *c), x=i16(1, 3, 4, 5)) for s in [(6, 8), (9, 12), (2, 3)] for c in RESIZES),
    *(case(ResizeBilinear(s, *c), x=i16(1, 3, 4, 5)) for s in [(6, 8), (9, 12), (2, 3)] for c in RESIZES),
]

ALL_QPARAMS = [
    *(
        case(Requantize(DType.INT16), x=i16(64, 4, scale=a), out=q(b), name=f"{a} {b}")
        for a, b in [(0.0003, 0.0001), (0.0003, 0.0003), (1e-6, 1e-2), (2**-15, 2**-12)]
    ),
    *(
        case(Requantize(DType.INT16), x=i8(64, 4, scale=a, zero=z), out=q(b), name=f"{a} {z} {b}")
        for a, z, b in [(0.05, 3, 0.0002), (0.05, -128, 0.0004), (1 / 256, -128, 2**-15), (0.05, 127, 0.05)]
    ),
    *(
        case(Requantize(), x=i16(64, 4, scale=a), out=q(b, z), name=f"{a} {b} {z}")
        for a, b, z in [(0.0002, 0.05, 3), (0.0004, 0.05, -128), (2**-15, 1 / 256, -128), (0.05, 0.05, 127)]
    ),
]

CASES = [
    *CONVOLUTIONS,
    *PRODUCTS,
    *ADDITIONS,
    *MULTIPLICATIONS,
    *SELECTIONS,
    *CLAMPS,
    *CURVES,
    *POOLS,
    *MOVEMENTS,
    *ALL_QPARAMS,
]
