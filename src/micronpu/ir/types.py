"""Types of the values in a graph: shape, element type and quantization."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from micronpu.base.errors import InternalError

Shape = tuple[int, ...]


class DType(str, Enum):
    """Element types that a graph may hold; the value is the NumPy name."""

    INT8 = "int8"
    UINT8 = "uint8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT32 = "float32"
    BOOL = "bool"

    @property
    def numpy(self) -> np.dtype[np.generic]:
        return np.dtype(self.value)

    @property
    def size(self) -> int:
        """Bytes per element."""
        return self.numpy.itemsize

    @property
    def limits(self) -> tuple[int, int]:
        """Smallest and largest integer of the type."""
        info = np.iinfo(self.value)
        return int(info.min), int(info.max)


@dataclass(frozen=True)
class QParams:
    """Affine quantization: ``real = scale * (integer - zero_point)``.

    One scale and zero point per tensor, or one per index of ``axis``.
    Scales are rounded to float32, the precision of every format downstream.
    """

    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    axis: int | None = None

    def __post_init__(self) -> None:
        if len(self.scale) != len(self.zero_point) or not self.scale:
            raise InternalError(
                f"Quantization parameters need as many zero points as scales, got {len(self.scale)} scales "
                f"and {len(self.zero_point)} zero points."
            )
        if self.axis is None and len(self.scale) != 1:
            raise InternalError(f"{len(self.scale)} scales without an axis to apply them along.")
        # LiteRT and the observers hold scales as float32; keeping exactly that value makes both agree.
        scales = np.array(self.scale, np.float32)
        wrong = scales[~(np.isfinite(scales) & (scales > 0))]
        if wrong.size:
            raise InternalError(f"A quantization scale is finite and positive, got {float(wrong[0])}.")
        object.__setattr__(self, "scale", tuple(scales.tolist()))
        object.__setattr__(self, "zero_point", tuple(map(int, self.zero_point)))

    @classmethod
    def per_tensor(cls, scale: float, zero_point: int) -> QParams:
        return cls((scale,), (zero_point,))

    @classmethod
    def per_channel(cls, scales: Sequence[float], axis: int, zero_points: Sequence[int] | None = None) -> QParams:
        zeros = tuple(zero_points) if zero_points is not None else (0,) * len(scales)
        return cls(tuple(scales), zeros, axis)

    @property
    def is_per_tensor(self) -> bool:
        return self.axis is None

    def __str__(self) -> str:
        if self.axis is None:
            # The shortest digits that give the same float32 again.
            digits = str(np.float32(self.scale[0])).removesuffix(".0")
            return f"{digits}*(q{-self.zero_point[0]:+d})"
        return f"per-channel[{len(self.scale)}]@{self.axis}"


@dataclass(frozen=True)
class TensorType:
    """Static type of a value."""

    shape: Shape  # sizes, outermost first; every size is a known positive number
    dtype: DType  # element type
    qparams: QParams | None = None  # quantization, or None for plain numbers

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(s) for s in self.shape))
        object.__setattr__(self, "dtype", DType(self.dtype))

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.size * self.dtype.size

    @property
    def channels(self) -> int:
        """Size of the last axis, which holds the channels of a channels-last tensor."""
        return self.shape[-1] if self.shape else 1

    @property
    def scale(self) -> float:
        """The one scale of a per-tensor quantized type."""
        return self._per_tensor().scale[0]

    @property
    def zero_point(self) -> int:
        """The one zero point of a per-tensor quantized type."""
        return self._per_tensor().zero_point[0]

    def _per_tensor(self) -> QParams:
        if self.qparams is None or not self.qparams.is_per_tensor:
            raise InternalError(f"Expected a per-tensor quantized type, got {self}.")
        return self.qparams

    def with_shape(self, shape: Sequence[int]) -> TensorType:
        return replace(self, shape=tuple(shape))

    def with_qparams(self, qparams: QParams | None) -> TensorType:
        return replace(self, qparams=qparams)

    def __str__(self) -> str:
        quantization = f", {self.qparams}" if self.qparams else ""
        return f"{self.dtype.value}[{','.join(map(str, self.shape))}{quantization}]"
