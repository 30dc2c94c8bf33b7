"""Types of the values in a graph."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from micronpu.base.errors import InternalError
from micronpu.ir import DType, QParams, TensorType


@pytest.mark.parametrize(
    ("dtype", "size", "limits"),
    [
        (DType.INT8, 1, (-128, 127)),
        (DType.UINT8, 1, (0, 255)),
        (DType.INT16, 2, (-(2**15), 2**15 - 1)),
        (DType.INT32, 4, (-(2**31), 2**31 - 1)),
        (DType.INT64, 8, (-(2**63), 2**63 - 1)),
    ],
)
def test_integer_types(dtype, size, limits):
    assert dtype.size == size
    assert dtype.limits == limits
    assert dtype.numpy == np.dtype(dtype.value)


def test_every_type_has_a_numpy_type():
    assert {d: d.size for d in DType if d in (DType.FLOAT32, DType.BOOL)} == {DType.FLOAT32: 4, DType.BOOL: 1}
    assert [d.numpy.itemsize for d in DType] == [d.size for d in DType]


# ---------------------------------------------------------------- quantization parameters


@given(st.floats(1e-30, 1e30))
def test_scales_have_the_precision_of_float32(scale):
    """Two scales that every format downstream takes for one are equal here."""
    made = QParams.per_tensor(scale, 0)
    assert made.scale == (float(np.float32(scale)),)
    assert made == QParams.per_tensor(float(np.float32(scale)), 0)


@given(st.floats(1e-30, 1e30), st.integers(-128, 127))
def test_the_text_is_complete(scale, zero_point):
    made = QParams.per_tensor(scale, zero_point)
    digits, rest = str(made).split("*")
    assert np.float32(digits) == np.float32(scale)
    assert rest == f"(q{-zero_point:+d})"


def test_text():
    assert str(QParams.per_tensor(0.05, -3)) == "0.05*(q+3)"
    assert str(QParams.per_tensor(30.0, 127)) == "30*(q-127)"
    assert str(QParams.per_channel([0.1, 0.2], 3)) == "per-channel[2]@3"
    assert str(TensorType((1, 4), DType.INT8, QParams.per_tensor(0.5, 0))) == "int8[1,4, 0.5*(q+0)]"
    assert str(TensorType((), DType.INT32)) == "int32[]"


def test_per_channel():
    made = QParams.per_channel([0.1, 0.2, 0.3], 1)
    assert made.axis == 1
    assert made.zero_point == (0, 0, 0)
    assert not made.is_per_tensor
    assert QParams.per_channel([0.1, 0.2], 0, [1, 2]).zero_point == (1, 2)
    assert QParams.per_tensor(0.1, 0).is_per_tensor


@pytest.mark.parametrize("scale", [0.0, -0.1, math.inf, math.nan, 1e-60])
def test_a_scale_is_finite_and_positive(scale):
    """1e-60 is zero in float32."""
    with pytest.raises(InternalError, match="A quantization scale is finite and positive, got"):
        QParams.per_tensor(scale, 0)


def test_parameters_that_do_not_fit_together():
    with pytest.raises(InternalError, match="as many zero points as scales, got 2 scales and 1 zero points"):
        QParams((0.1, 0.2), (0,), 0)
    with pytest.raises(InternalError, match="as many zero points as scales, got 0 scales"):
        QParams((), ())
    with pytest.raises(InternalError, match="2 scales without an axis"):
        QParams((0.1, 0.2), (0, 0))


def test_numpy_numbers_are_taken():
    made = QParams.per_tensor(np.float32(0.1), np.int64(4))  # type: ignore[arg-type]
    assert made == QParams.per_tensor(0.1, 4)
    assert type(made.zero_point[0]) is int
    assert hash(made) == hash(QParams.per_tensor(0.1, 4))


# ---------------------------------------------------------------- tensor types


@pytest.mark.parametrize(
    ("shape", "size", "channels"), [((), 1, 1), ((5,), 5, 5), ((1, 7, 5, 9), 315, 9), ((2, 1, 1, 3, 4), 24, 4)]
)
def test_sizes(shape, size, channels):
    type = TensorType(shape, DType.INT32)
    assert (type.rank, type.size, type.bytes, type.channels) == (len(shape), size, 4 * size, channels)


def test_dtype_by_name_and_shape_of_numpy_numbers():
    type = TensorType((np.int64(2), np.int64(3)), "int8")  # type: ignore[arg-type]
    assert type == TensorType((2, 3), DType.INT8)
    assert all(isinstance(n, int) and not isinstance(n, np.integer) for n in type.shape)


def test_with():
    type = TensorType((2, 3), DType.INT8, QParams.per_tensor(0.1, 4))
    assert type.with_shape([6]) == TensorType((6,), DType.INT8, type.qparams)
    assert type.with_qparams(None) == TensorType((2, 3), DType.INT8)
    assert (type.scale, type.zero_point) == (float(np.float32(0.1)), 4)


@pytest.mark.parametrize("qparams", [None, QParams.per_channel([0.1, 0.2], 0)])
def test_the_one_scale_needs_a_per_tensor_type(qparams):
    type = TensorType((2,), DType.INT8, qparams)
    with pytest.raises(InternalError, match="Expected a per-tensor quantized type, got int8"):
        _ = type.scale
    with pytest.raises(InternalError, match="Expected a per-tensor quantized type, got int8"):
        _ = type.zero_point
