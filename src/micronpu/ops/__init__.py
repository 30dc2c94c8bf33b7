"""Definitions of the operators, one module per kind with a class for each, and all lowerings of ATen overloads."""

from micronpu.ir.op import Op, Value, Work
from micronpu.ir.registry import ATEN_IMPORTS, OPERATORS, all_operators
from micronpu.ops import (  # noqa: F401  (they fill the registries)
    activation,
    clamps,
    comparisons,
    convolution,
    elementwise,
    indices,
    matmul,
    movement,
    normalization,
    pooling,
    quantization,
    recurrent,
    reduction,
    resize,
    slicing,
    softmax,
    tiling,
    unary,
    volumes,
)
from micronpu.ops.tables import functions, table  # noqa: F401

__all__ = ["ATEN_IMPORTS", "OPERATORS", "Op", "Value", "Work", "all_operators"]
