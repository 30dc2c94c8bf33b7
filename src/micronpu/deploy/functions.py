"""Pre- and postprocessing for firmware: small C functions, each with its definition in Python.

`micronpu deploy --with resize,nms` writes them beside the programs. They compute only with integers, or compare, so
that C and Python give the same bits on every machine; tests compare both on 1,000 samples each, on the host and on two
emulated cores.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from micronpu.base.arrays import Array
from micronpu.base.errors import ModelError

ONE = 1 << 16
"""1.0 in coordinates: the width and the height of the picture."""
_LOG2_E, _CURVE = 24204406, (1073741824, 744271422, 257839441, 59996996, 9599877, 2034074)
"""log2(e) in 1/2^24; 2^f for f in [0, 1) as a polynomial in 1/2^30, with an error below 4e-7."""
_MOST_POWER = 8 << 24
_MOST_STEP = 16


def exponential(x: Array) -> Array:
    """Return e^x in 1/65536 for x in 1/2^24, clipped to [-8, 8]; the error is below 2e-6 relative, or 2/65536."""
    y = np.clip(np.asarray(x, np.int64), -_MOST_POWER, _MOST_POWER) * _LOG2_E >> 24
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


MOST_PIXELS = 8192
"""Maximum width and height of a picture in pixels."""


def resize(
    picture: Array,
    height: int,
    width: int,
    *,
    crop: tuple[int, int, int, int] | None = None,
    table: Sequence[int] | Array | None = None,
    channels_first: bool = False,
) -> Array:
    """Resize a picture, or a part of it, to int8: bilinear, with half-pixel centres.

    Positions are in 1/65536 of a pixel, weights in 1/256, and the sum of four pixels is rounded half up. C:
    `micronpu_resize`.

    Args:
        picture: uint8 [H, W, C].
        height, width: of the result.
        crop: (x, y, width, height) of the part; default: the whole picture.
        table: int8 [256] or [C, 256], result for each pixel value; default: the value minus 128.
        channels_first: return [C, height, width] instead of [height, width, C].

    Raises:
        ModelError: a size is 0 or above 8192, the part exceeds the picture, or the table has a wrong shape.
    """
    if picture.ndim != 3 or picture.dtype != np.uint8:
        raise ModelError("The picture is no uint8 array of shape [H, W, C].", hint="picture.astype(numpy.uint8)")
    x, y, w, h = crop if crop is not None else (0, 0, picture.shape[1], picture.shape[0])
    if not all(0 < n <= MOST_PIXELS for n in (*picture.shape[:2], w, h, width, height)) or x < 0 or y < 0:
        raise ModelError(f"A picture's sizes are between 1 and {MOST_PIXELS}.", hint="another size")
    if x + w > picture.shape[1] or y + h > picture.shape[0]:
        raise ModelError(
            f"The part {(x, y, w, h)} leaves the picture of {picture.shape[1]} x {picture.shape[0]}.",
            hint="another part",
        )
    maps = np.arange(-128, 128) if table is None else np.asarray(table)
    if maps.shape not in ((256,), (picture.shape[2], 256)):
        raise ModelError(f"The table has the shape {list(maps.shape)}.", hint="256 values, or 256 for each channel")
    part = picture[y : y + h, x : x + w].astype(np.int64)
    rows, row_parts = _places(h, height)
    columns, column_parts = _places(w, width)
    below, right = np.minimum(rows + 1, h - 1), np.minimum(columns + 1, w - 1)
    a, b = row_parts[:, None, None], column_parts[None, :, None]
    top = part[rows][:, columns] * (256 - b) + part[rows][:, right] * b
    bottom = part[below][:, columns] * (256 - b) + part[below][:, right] * b
    mixed = (top * (256 - a) + bottom * a + 32768) >> 16
    if maps.ndim == 1:
        result = maps[mixed]
    else:
        result = np.stack([maps[channel][mixed[..., channel]] for channel in range(picture.shape[2])], -1)
    return np.asarray(result.transpose(2, 0, 1) if channels_first else result, np.int8)


def _places(size: int, wanted: int) -> tuple[Array, Array]:
    """Return the pixel before each position, and its distance to the position in 1/256."""
    centres = (2 * np.arange(wanted, dtype=np.int64) + 1) * size * 65536 // (2 * wanted) - 32768
    kept = np.clip(centres, 0, (size - 1) * 65536)
    return kept >> 16, (kept >> 8) & 255


def topk(scores: Array, most: int) -> list[int]:
    """Return the indices of the highest scores [N], highest first; equal ones in order, NaN last.

    C: `micronpu_topk_int8`, `micronpu_topk_int16`, `micronpu_topk_float`.
    """
    if scores.ndim != 1 or scores.dtype not in (np.int8, np.int16, np.float32) or most < 0:
        raise ModelError(
            "The scores are int8, int16 or float32 [N], and their number is not negative.", hint="y[0, -1]"
        )
    return [int(place) for place in np.argsort(-scores.astype(np.float64), kind="stable")[:most]]


class Smooth:
    """Reports a class if the mean of its last scores is the highest and reaches a threshold, followed by a pause.

    C: `micronpu_smooth`.

    Args:
        classes: number of scores of a call.
        window: number of calls for the mean.
        threshold: minimum mean, in LSB of the scores.
        rest: number of calls after an event without another one.
        ignore: number of first classes that are never reported, such as silence.

    Raises:
        ModelError: a number is 0, or `window` is above 255.
    """

    def __init__(self, classes: int, *, window: int, threshold: int, rest: int = 0, ignore: int = 0) -> None:
        if classes < 1 or not 1 <= window <= 255 or rest < 0 or not 0 <= ignore < classes:
            raise ModelError("A window has 1 to 255 calls, of at least one class that counts.", hint="window=4")
        self.classes, self.threshold, self.rest, self.ignore = classes, threshold, rest, ignore
        self.window = window
        self._scores: deque[Array] = deque(maxlen=window)
        self._wait = 0

    def push(self, scores: Array) -> int:
        """Return the class that is detected with these scores, int8 [classes], or -1; for equal means the lower class.

        Raises:
            ModelError: wrong type or number of scores.
        """
        if scores.dtype != np.int8 or scores.shape != (self.classes,):
            raise ModelError(f"The scores are int8 [{self.classes}].", hint="scores[0]")
        self._scores.append(scores.astype(np.int64))
        if self._wait:
            self._wait -= 1
            return -1
        if len(self._scores) < self.window:
            return -1
        sums = np.sum(self._scores, 0)
        best = int(np.argmax(sums))
        if best < self.ignore or sums[best] < self.threshold * self.window:
            return -1
        self._wait = self.rest
        return best


DEFINITIONS = {"resize": resize, "ssd_decode": ssd_decode, "nms": nms, "smooth": Smooth, "topk": topk}
"""Functions by their names for `--with`, in the order of `micronpu.deploy.shared.FUNCTIONS`."""

__all__ = ["DEFINITIONS", "Found", "Smooth", "nms", "resize", "ssd_decode", "topk"]
