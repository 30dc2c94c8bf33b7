"""Boxes of a detector: decoding of anchors, and non-maximum suppression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from micronpu.base.errors import ModelError

Array = npt.NDArray[Any]
ONE = 1 << 16
"""1.0 in coordinates: the width and the height of the picture."""
_LOG2_E, _CURVE = 24204406, (1073741824, 744271422, 257839441, 59996996, 9599877, 2034074)
"""log2(e) in 1/2^24; 2^f for f in [0, 1) as a polynomial in 1/2^30, with an error below 4e-7."""
_MOST = 8 << 24
_MOST_STEP = 16


def exponential(x: Array) -> Array:
    """Return e^x in 1/65536 for x in 1/2^24, clipped to [-8, 8]; the error is below 2e-6 relative, or 2/65536."""
    y = np.clip(np.asarray(x, np.int64), -_MOST, _MOST) * _LOG2_E >> 24
    whole, part = y >> 24, (y & 0xFFFFFF) << 6
    power = np.full(y.shape, _CURVE[-1], np.int64)
    for coefficient in _CURVE[-2::-1]:
        power = coefficient + (power * part >> 30)
    return np.asarray(power >> (14 - whole), np.int64)


def ssd_decode(
    deltas: Array, anchors: Array, *, step: float, zero_point: int, variances: tuple[float, float] = (0.1, 0.2)
) -> Array:
    """Return boxes for an SSD's anchors: corners x0, y0, x1, y1 in 1/65536 of the picture, clipped to it.

    C: `micronpu_ssd_decode`, whose constants `SsdConstants` are these values in 1/2^24.

    Args:
        deltas: int8 [N, 4] of the network: dx, dy, dw, dh.
        anchors: int32 [N, 4]: centre x, y, width, height, in 1/65536 of the picture.
        step, zero_point: qparams of the deltas.
        variances: factors for centres and sizes.

    Returns:
        int32 [N, 4].

    Raises:
        ModelError: wrong shapes or types.
    """
    if deltas.dtype != np.int8 or deltas.ndim != 2 or deltas.shape[1] != 4 or anchors.shape != deltas.shape:
        raise ModelError("Deltas are int8 [N, 4], and anchors int32 [N, 4].", hint="deltas[0].reshape(-1, 4)")
    if not 0 <= int(anchors.min(initial=0)) <= int(anchors.max(initial=0)) <= 4 * ONE:
        raise ModelError("Anchors are between 0 and 4, in 1/65536 of the picture.", hint="round(65536 * anchors)")
    if not (0 < step < _MOST_STEP and all(0 < v <= 1 for v in variances) and -128 <= zero_point <= 127):
        raise ModelError(
            f"The step of the deltas is above 0 and below {_MOST_STEP}, variances are at most 1.", hint="border.scale"
        )
    steps, centre, size = (round(value * (1 << 24)) for value in (step, *variances))
    place = anchors.astype(np.int64)
    given = (deltas.astype(np.int64) - zero_point) * steps
    middle = place[:, :2] + ((given[:, :2] * centre >> 24) * place[:, 2:] >> 24)
    half = exponential(given[:, 2:] * size >> 24) * place[:, 2:] >> 17
    corners = np.clip(np.concatenate([middle - half, middle + half], 1), 0, ONE)
    return np.asarray(corners, np.int32)


@dataclass(frozen=True)
class Found:
    """A box that was kept: its index, its class, and its score."""

    box: int
    kind: int
    score: int


def nms(boxes: Array, scores: Array, *, threshold: int, overlap: float, most: int) -> list[Found]:
    """Return the boxes after greedy non-maximum suppression per class, best first.

    For equal scores the lower class, then the lower index comes first. C: `micronpu_nms`.

    Args:
        boxes: int32 [N, 4]: x0, y0, x1, y1 in 1/65536 of the picture.
        scores: int8 [N, classes] of the network.
        threshold: minimum score.
        overlap: maximum intersection over union of two boxes of a class; the one with the lower score is dropped.
        most: maximum number of boxes.

    Raises:
        ModelError: wrong shapes or types.
    """
    if scores.dtype != np.int8 or scores.ndim != 2 or boxes.shape != (len(scores), 4):
        raise ModelError("Boxes are int32 [N, 4], and scores int8 [N, classes].", hint="scores[0]")
    limit = round(overlap * ONE)
    order = sorted(
        (-int(scores[box, kind]), kind, box) for box, kind in zip(*np.nonzero(scores >= threshold), strict=True)
    )
    kept: list[Found] = []
    for score, kind, box in order:
        if len(kept) == most:
            break
        if not any(k.kind == kind and _overlaps(boxes[k.box], boxes[box], limit) for k in kept):
            kept.append(Found(int(box), int(kind), -score))
    return kept


def _overlaps(a: Array, b: Array, limit: int) -> bool:
    x0, y0, x1, y1 = (int(f(p, q)) for f, p, q in zip((max, max, min, min), a, b, strict=True))
    common = max(x1 - x0, 0) * max(y1 - y0, 0)
    both = sum((int(c[2]) - int(c[0])) * (int(c[3]) - int(c[1])) for c in (a, b)) - common
    return common * ONE > limit * both
