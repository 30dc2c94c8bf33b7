"""Numbers of TOSA's flatbuffers: operators, element types, modes, and fields of tables.

Source: ``tosa.fbs`` of TOSA's serialization library (Apache-2.0), limited to integer programs.
"""

from __future__ import annotations

from enum import IntEnum

IDENTIFIER = b"TOSA"
"""File identifier of the flatbuffer, at its fifth byte."""
VERSION = (1, 0, 0)
"""Version of the specification."""
LIBRARY = (2026, 8, 0)
"""Version of the serialization library with the same bytes; files also name it as the oldest reader."""


class Op(IntEnum):
    """Operators of version 1.0; their attributes have the same numbers."""

    ARGMAX, AVG_POOL2D, CONV2D, CONV3D, DEPTHWISE_CONV2D, FFT2D, MATMUL, MAX_POOL2D, RFFT2D = range(1, 10)
    TRANSPOSE_CONV2D, CLAMP, ERF, SIGMOID, TANH, ADD, ARITHMETIC_RIGHT_SHIFT, BITWISE_AND = range(10, 18)
    BITWISE_OR, BITWISE_XOR, INTDIV, LOGICAL_AND, LOGICAL_LEFT_SHIFT, LOGICAL_RIGHT_SHIFT = range(18, 24)
    LOGICAL_OR, LOGICAL_XOR, MAXIMUM, MINIMUM, MUL, POW, SUB, TABLE, ABS, BITWISE_NOT, CEIL, CLZ = range(24, 36)
    COS, EXP, FLOOR, LOG, LOGICAL_NOT, NEGATE, RECIPROCAL, RSQRT, SIN, SELECT, EQUAL, GREATER = range(36, 48)
    GREATER_EQUAL, REDUCE_ALL, REDUCE_ANY, REDUCE_MAX, REDUCE_MIN, REDUCE_PRODUCT, REDUCE_SUM = range(48, 55)
    CONCAT, PAD, RESHAPE, REVERSE, SLICE, TILE, TRANSPOSE, GATHER, SCATTER, RESIZE, CAST = range(55, 66)
    RESCALE, CONST, IDENTITY, CUSTOM, COND_IF, WHILE_LOOP, VARIABLE, VARIABLE_WRITE = range(66, 74)
    VARIABLE_READ, CONST_SHAPE = range(74, 76)


class DType(IntEnum):
    """Element types."""

    BOOL, INT4, INT8, INT16, INT32, INT48, FP32, FP16, BF16, SHAPE = range(1, 11)


class ResizeMode(IntEnum):
    """Interpolation modes of RESIZE."""

    NEAREST, BILINEAR = 1, 2


class NanPropagationMode(IntEnum):
    """Treatment of NaN."""

    PROPAGATE, IGNORE = 1, 2


class RoundingMode(IntEnum):
    """Rounding modes of RESCALE."""

    SINGLE_ROUND, INEXACT_ROUND, DOUBLE_ROUND = 1, 2, 3


class Graph(IntEnum):
    """Fields of the root."""

    VERSION, REGIONS, SOFTWARE, COMPATIBILITY = range(4)


class Version(IntEnum):
    """Fields of the version of the specification."""

    MAJOR, MINOR, PATCH, DRAFT = range(4)


class Software(IntEnum):
    """Fields of a version of the serialization library."""

    MAJOR, MINOR, MICRO, MODIFIER = range(4)


class Compatibility(IntEnum):
    """Fields of the reader's requirements."""

    READER, FEATURES = range(2)


class Region(IntEnum):
    """Fields of a region."""

    NAME, BLOCKS = range(2)


class Block(IntEnum):
    """Fields of a block."""

    NAME, OPERATORS, TENSORS, INPUTS, OUTPUTS, SHAPES = range(6)


class Tensor(IntEnum):
    """Fields of a tensor; the writer adds empty block scales."""

    NAME, SHAPE, TYPE, DATA, VARIABLE, UNRANKED, VARIABLE_NAME = range(7)
    SCALES = 10


class Shape(IntEnum):
    """Fields of a list of sizes."""

    NAME, RANK, DATA = range(3)


class Operator(IntEnum):
    """Fields of an operator."""

    OP, ATTRIBUTE_TYPE, ATTRIBUTE, INPUTS, OUTPUTS, LOCATION = range(6)


class Location(IntEnum):
    """Fields of an operator's source location."""

    TEXT = 0
