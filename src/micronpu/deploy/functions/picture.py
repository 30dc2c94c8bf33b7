"""Resizing of a camera's picture for a network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from micronpu.base.errors import ModelError

Array = npt.NDArray[Any]
MOST = 8192
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
    if not all(0 < n <= MOST for n in (*picture.shape[:2], w, h, width, height)) or x < 0 or y < 0:
        raise ModelError(f"A picture's sizes are between 1 and {MOST}.", hint="another size")
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
