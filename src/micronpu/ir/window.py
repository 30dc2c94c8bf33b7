"""Clamps that an operator can fuse, and the geometry of windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from micronpu.base.errors import InternalError
from micronpu.ir.arithmetic import round_half_away
from micronpu.ir.types import TensorType

Size2d = tuple[int, int]


class Activation(Enum):
    """Clamps with their own code in LiteRT; the value is (lower bound, upper bound)."""

    NONE = (None, None)
    RELU = (0.0, None)
    RELU6 = (0.0, 6.0)
    RELU_N1_TO_1 = (-1.0, 1.0)
    RELU_0_TO_1 = (0.0, 1.0)

    @classmethod
    def of_bounds(cls, low: float | None, high: float | None) -> Activation | None:
        """The clamp with exactly these bounds, or None."""
        return next((a for a in cls if a.value == (low, high)), None)

    @property
    def can_fuse(self) -> bool:
        """True if LiteRT has a fused-activation code for it."""
        return self is not Activation.RELU_0_TO_1

    def limits(self, y: TensorType) -> tuple[int, int]:
        """Smallest and largest integer of the result."""
        low, high = y.dtype.limits
        if self.value[0] is not None:
            low = max(low, _quantize(self.value[0], y))
        if self.value[1] is not None:
            high = min(high, _quantize(self.value[1], y))
        return low, high


def _quantize(value: float, y: TensorType) -> int:
    """Divide in float32 and round half away from zero, like LiteRT."""
    return y.zero_point + round_half_away(float(np.float32(value) / np.float32(y.scale)))


@dataclass(frozen=True)
class Padding2d:
    """Elements added on each side of height and width."""

    top: int = 0
    bottom: int = 0
    left: int = 0
    right: int = 0

    @classmethod
    def symmetric(cls, height: int, width: int) -> Padding2d:
        return cls(height, height, width, width)

    @classmethod
    def same(cls, size: Size2d, kernel: Size2d, stride: Size2d, dilation: Size2d = (1, 1)) -> Padding2d:
        """Padding of LiteRT's SAME: the result has ceil(size / stride) elements; an odd element is added at the end."""
        sides: list[int] = []
        for n, k, s, d in zip(size, kernel, stride, dilation, strict=True):
            total = max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
            sides += [total // 2, total - total // 2]
        return cls(*sides)

    def __bool__(self) -> bool:
        return bool(self.top or self.bottom or self.left or self.right)

    def __add__(self, other: Padding2d) -> Padding2d:
        return Padding2d(
            self.top + other.top, self.bottom + other.bottom, self.left + other.left, self.right + other.right
        )

    @property
    def rows(self) -> tuple[int, int]:
        return self.top, self.bottom

    @property
    def columns(self) -> tuple[int, int]:
        return self.left, self.right

    def __str__(self) -> str:
        return f"({self.top},{self.bottom},{self.left},{self.right})"


NO_PADDING = Padding2d()


def windows(size: int, kernel: int, stride: int, padding: tuple[int, int], dilation: int = 1) -> int:
    """Number of positions of a window along one axis."""
    span = size + sum(padding) - (kernel - 1) * dilation - 1
    if span < 0:
        raise InternalError(f"A window of {kernel} (dilation {dilation}) does not fit into {size} + {sum(padding)}.")
    return span // stride + 1


def litert_padding(
    size: Sequence[int], kernel: Size2d, stride: Size2d, padding: Padding2d, dilation: Size2d = (1, 1)
) -> str | None:
    """ "VALID" or "SAME" if LiteRT can express the padding of a window over [height, width], else None."""
    if not padding:
        return "VALID"
    if padding == Padding2d.same((size[0], size[1]), kernel, stride, dilation):
        return "SAME"
    return None
