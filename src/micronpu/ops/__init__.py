"""What each operator means: one module per family, one class per operator, registered on import."""

from micronpu.ops import (
    activation,
    concat,
    convolution,
    elementwise,
    linear,
    movement,
    pooling,
    quantization,
    reduction,
    softmax,
)
from micronpu.ops.base import ATEN_IMPORTS, OPERATORS, Op, Value, Work, all_operators

__all__ = [
    "ATEN_IMPORTS",
    "OPERATORS",
    "Op",
    "Value",
    "Work",
    "activation",
    "all_operators",
    "concat",
    "convolution",
    "elementwise",
    "linear",
    "movement",
    "pooling",
    "quantization",
    "reduction",
    "softmax",
]
