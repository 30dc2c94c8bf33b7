"""Constants that LiteRT files store in sparse form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from ai_edge_litert import schema_py_generated as schema

from micronpu.base.arrays import Array
from micronpu.base.errors import ModelError
from micronpu.frontend.model_files.network import MAX_ELEMENTS


def dense(sparsity: Any, values: Array, shape: Sequence[int], place: str) -> Array:
    """Return the tensor that a file stores as its nonzero values and their places.

    Each level of the storage is an axis, or an axis of the blocks into which other axes are divided. It has all
    indices, or lists those of each entry of the level before it; see `SparsityParameters` in LiteRT's schema.
    """
    error = ModelError(f"{place} is stored in a sparse form that does not fit it.", hint="copy the file again")
    lists = (sparsity.traversalOrder, sparsity.blockMap, sparsity.dimMetadata)
    order, blocks, levels = ([*(v if v is not None else ())] for v in lists)
    if sorted(order) != list(range(len(shape) + len(blocks))) or len(levels) != len(order):
        raise error
    found: list[npt.NDArray[np.int64]] = []  # of each level so far, the index of every entry
    count, sizes = 1, {}
    for axis, level in zip(order, levels, strict=True):
        if level.format == schema.DimensionType.DENSE:
            sizes[axis] = level.denseSize
            if level.denseSize < 0 or count * level.denseSize > MAX_ELEMENTS:
                raise error
            times: Any = level.denseSize
            indices = np.tile(np.arange(level.denseSize), count)
        else:
            ends, indices = (
                np.asarray(() if getattr(v, "values", None) is None else v.values, np.int64)
                for v in (level.arraySegments, level.arrayIndices)
            )
            times = np.diff(ends)
            if len(ends) != count + 1 or ends[0] != 0 or (times < 0).any() or ends[-1] != len(indices):
                raise error
        found, count = [*(np.repeat(i, times) for i in found), indices], len(indices)
    at = dict(zip(order, found, strict=True))
    for block, axis in enumerate(blocks, len(shape)):
        if axis not in range(len(shape)) or block not in sizes:
            raise error
        at[axis] = at[axis] * sizes[block] + at[block]
    places = [at[axis] for axis in range(len(shape))]
    if len(values) != count or any(((i < 0) | (i >= n)).any() for i, n in zip(places, shape, strict=True)):
        raise error
    made = np.zeros(shape, values.dtype)
    made[tuple(places)] = values
    return made
