"""Definitions of the operators, one module per kind with a class for each, and all lowerings of ATen overloads."""

from micronpu.ir.op import Op, Value, Work
from micronpu.ir.registry import ATEN_IMPORTS, OPERATORS, all_operators
from micronpu.ops import (  # noqa: F401  (they fill the registries)
    activation,
    attention,
    clamps,
    comparisons,
    concat,
    convolution,
    distances,
    elementwise,
    filling,
    indices,
    linear,
    matmul,
    movement,
    normalization,
    padding,
    pooling,
    quantization,
    recurrent,
    reduction,
    resampling,
    resize,
    slicing,
    softmax,
    tiling,
    transposed,
    unary,
    volumes,
)
from micronpu.ops.tables import functions, lookups, table  # noqa: F401

__all__ = ["ATEN_IMPORTS", "OPERATORS", "Op", "Value", "Work", "all_operators"]
