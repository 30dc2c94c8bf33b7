"""Rewrites of elements picked by constant indices; registered with those of `micronpu.quantize.decompose`."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from micronpu.ops.adaptive import MAX_PARTS
from micronpu.quantize.decompose import Writer, rewrites
from micronpu.quantize.forms import ranges
from micronpu.quantize.transforms import attribute

aten = torch.ops.aten


@rewrites("embedding.default")
def _rows_by_int32(write: Writer, node: Node, given: dict[str, Any]) -> Any:
    """embedding(w, i) -> embedding(w, int32(i)): NPUs that look up rows count them in int32."""
    index = given["indices"]
    if not write.tables or index.meta["val"].dtype != torch.int64:
        return None
    return write(aten.embedding.default, given["weight"], write(aten.to.dtype, index, torch.int32))


@rewrites("gather.default", "take_along_dim.default")
def _gather(write: Writer, node: Node, given: dict[str, Any]) -> Any:
    """gather(x, dim, [[5, 6, 9]]) -> slices of x in one row -> cat -> reshape, for constant indices.

    Every run of elements that lie side by side, or evenly apart, is a slice; more than `MAX_PARTS` of them stay.
    """
    x, axis = given["self"], given["dim"]
    index = attribute(write.model, given.get("index", given.get("indices")))
    if index is None or axis is None or not index.numel():
        return None
    shape = x.meta["val"].shape
    places = torch.arange(shape.numel()).reshape(shape)
    if index.dim() == 0 or index.dim() != len(shape):
        return None
    picked = places.gather(axis, index) if "index" in given else torch.take_along_dim(places, index, axis)
    runs = ranges([int(i) for i in picked.reshape(-1).tolist()])
    if len(runs) > MAX_PARTS:
        return None
    row = write(aten.reshape.default, x, [-1])
    parts = [
        write(aten.slice.Tensor, row, 0, first, first + (count - 1) * step + 1, step) for first, count, step in runs
    ]
    joined = parts[0] if len(parts) == 1 else write(aten.cat.default, parts, 0)
    return write(aten.reshape.default, joined, list(picked.shape))
