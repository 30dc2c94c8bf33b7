"""Lowerings of LiteRT operators that move values: shapes, slices, padding, gathers, resizing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from operator import methodcaller
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from micronpu.frontend.model_files.litert import FIRST, LAST, FileOperator, LiteRtBuilder
from micronpu.frontend.model_files.litert_operators import AXIS, LOWERINGS, axes_of, cut, lowering, of_operands
from micronpu.frontend.model_files.network import Function, Operand, tensor

_RESHAPE = of_operands(lambda build, operator: methodcaller("reshape", operator.outputs[0].shape))
LOWERINGS |= dict.fromkeys(("RESHAPE", "SQUEEZE", "EXPAND_DIMS"), _RESHAPE) | {
    "TILE": of_operands(lambda build, operator: methodcaller("repeat", build.integers(operator, 1))),
    "BROADCAST_TO": of_operands(lambda build, operator: methodcaller("expand", operator.outputs[0].shape)),
    "REVERSE_V2": of_operands(lambda build, operator: partial(torch.flip, dims=axes_of(build, operator, 1, LAST))),
}


@lowering("TRANSPOSE")
def _transpose(build: LiteRtBuilder, operator: FileOperator) -> None:
    axes = build.integers(operator, 1)
    # Contiguous like the file's result; a permuted image would be channels last in memory.
    build.move(operator, 0, lambda x: x.permute(axes), lambda x: x.contiguous())


@lowering("CONCATENATION")
def _concatenate(build: LiteRtBuilder, operator: FileOperator) -> None:
    order, rank = build.order_of(operator), len(operator.outputs[0].shape)
    axis = operator.option("axis", 0) % rank
    axis = AXIS[axis] if order == FIRST else axis
    operands = [build.read(operator, i, order) for i in range(len(operator.inputs))]
    build.compute(operator, lambda *given: torch.cat(given, axis), operands, order)


@lowering("PACK")
def _pack(build: LiteRtBuilder, operator: FileOperator) -> None:
    axis = operator.option("axis", 0)
    operands = [build.read(operator, i) for i in range(len(operator.inputs))]
    build.compute(operator, lambda *given: torch.stack(given, axis), operands)


@lowering("UNPACK")
def _unpack(build: LiteRtBuilder, operator: FileOperator) -> None:
    axis, x = operator.option("axis", 0), build.read(operator, 0)
    for i in range(len(operator.outputs)):  # one step for each result, so that each has its own quantization
        build.compute(operator, partial(torch.select, dim=axis, index=i), [x], result=i)


@lowering("SPLIT", "SPLIT_V")
def _split(build: LiteRtBuilder, operator: FileOperator) -> None:
    source, where = (1, 0) if operator.kind == "SPLIT" else (0, 2)
    (axis,), start, x = build.integers(operator, where), 0, build.read(operator, source)
    for i, made in enumerate(operator.outputs):
        length = made.shape[axis]
        build.compute(operator, partial(torch.narrow, dim=axis, start=start, length=length), [x], result=i)
        start += length


@lowering("SLICE")
def _slice(build: LiteRtBuilder, operator: FileOperator) -> None:
    starts, given = build.integers(operator, 1), operator.operand(0).shape
    cuts = [slice(s, s + n) for s, n in zip(starts, operator.outputs[0].shape, strict=True)]
    build.move(operator, 0, *cut(cuts, given))


@lowering("STRIDED_SLICE")
def _strided_slice(build: LiteRtBuilder, operator: FileOperator) -> None:
    begin, end, step = (build.integers(operator, i) for i in (1, 2, 3))
    masks = {n: int(operator.option(f"{n}Mask", 0)) for n in ("begin", "end", "ellipsis", "newAxis", "shrinkAxis")}
    if masks["ellipsis"] or masks["newAxis"] or operator.option("offset", False) or min(step) < 1:
        raise operator.error("has an ellipsis, a new axis, an offset or a negative step", "plain slices in the model")
    cuts: list[slice | int] = []
    for i, n in enumerate(operator.operand(0).shape[: len(begin)]):
        if masks["shrinkAxis"] >> i & 1:
            cuts.append(begin[i])
            continue
        first, last = (v[i] + n if v[i] < 0 else v[i] for v in (begin, end))
        first = 0 if masks["begin"] >> i & 1 else min(max(first, 0), n)
        cuts.append(slice(first, n if masks["end"] >> i & 1 else min(max(last, 0), n), step[i]))
    build.move(operator, 0, *cut(cuts, operator.operand(0).shape))


@lowering("PAD", "PADV2")
def _pad(build: LiteRtBuilder, operator: FileOperator) -> None:
    rank, order = len(operator.operand(0).shape), build.order_of(operator)
    pairs = np.array(build.integers(operator, 1)).reshape(rank, 2)
    if order == FIRST:
        pairs = pairs[[0, 3, 1, 2]]
    flat = [int(n) for n in pairs[::-1].reshape(-1)]
    fill = build.real_constant(operator.operand(2)) if operator.has(2) else np.float32(0)
    if fill is None:
        raise operator.error("pads with a value that is computed at run time", "a constant")
    function = partial(functional.pad, pad=_without_trailing_zeros(flat), value=float(np.reshape(fill, -1)[0]))
    build.compute(operator, function, [build.read(operator, 0, order)], order)


@lowering("MIRROR_PAD")
def _mirror_pad(build: LiteRtBuilder, operator: FileOperator) -> None:
    shape = operator.operand(0).shape
    pairs = np.array(build.integers(operator, 1)).reshape(len(shape), 2)
    mode: Literal["symmetric", "reflect"] = "symmetric" if operator.option("mode", 0) else "reflect"
    if mode == "reflect" and len(shape) == 4 and not pairs[[0, 3]].any():
        function = partial(functional.pad, pad=_without_trailing_zeros(pairs[[2, 1]].reshape(-1).tolist()), mode=mode)
        return build.compute(operator, function, [build.read(operator, 0, FIRST)], FIRST)
    if mode == "reflect" and operator.outputs[0].rounding is None:
        return build.compute(operator, partial(_reflect, pairs=pairs.tolist()), [build.read(operator, 0)])
    _pick(build, operator, [np.pad(np.arange(n), tuple(p), mode=mode) for n, p in zip(shape, pairs, strict=True)])


def _reflect(x: torch.Tensor, pairs: Sequence[Sequence[int]]) -> torch.Tensor:
    """Mirror one axis after the other: backends compute such a padding, and no selection of many indices."""
    for axis, pair in ((axis, list(pair)) for axis, pair in enumerate(pairs) if any(pair)):
        last = x.movedim(axis, -1)
        padded = functional.pad(last.reshape(1, -1, last.shape[-1]), pair, mode="reflect")
        x = padded.reshape(*last.shape[:-1], -1).movedim(-1, axis)
    return x


def _pick(build: LiteRtBuilder, operator: FileOperator, places: Sequence[npt.NDArray[np.int64]]) -> None:
    """Append the selection of indices of each axis; in a quantized file as slices that are joined."""
    x, made = build.read(operator, 0), operator.outputs[0]
    for axis, (place, n) in enumerate(zip(places, operator.operand(0).shape, strict=True)):
        if np.array_equal(place, np.arange(n)):
            continue
        if made.rounding is None:
            select: Function = lambda v, at, axis=axis: torch.index_select(v, axis, at)  # noqa: E731
            (x,) = build.add(f"{made.name}_axis{axis}", select, [x, tensor(place)])
            continue
        parts: list[Operand] = []
        for run in np.split(place, np.flatnonzero(np.diff(place) != 1) + 1):
            part = partial(torch.narrow, dim=axis, start=int(run[0]), length=len(run))
            parts += build.add(f"{made.name}_part{len(parts)}", part, [x], [made.rounding])
        (x,) = build.add(f"{made.name}_axis{axis}", lambda *v, axis=axis: torch.cat(v, axis), parts, [made.rounding])
    build.compute(operator, lambda v: v, [x])


def _without_trailing_zeros(pads: list[int]) -> list[int]:
    while len(pads) > 2 and pads[-2:] == [0, 0]:
        pads = pads[:-2]
    return pads


@lowering("GATHER")
def _gather(build: LiteRtBuilder, operator: FileOperator) -> None:
    axis, indices = operator.option("axis", 0), operator.operand(1)
    if operator.option("batchDims", 0):
        raise operator.error("gathers with batch dimensions", "a gather along one axis")
    rank, made = len(operator.operand(0).shape), operator.outputs[0].shape
    if indices.type not in ("INT32", "INT64"):
        raise operator.error(f"has indices of {indices.type}", "int32 indices")
    table = build.real_constant(operator.operand(0))
    if table is not None and table.ndim == 1:  # a function of each index
        order = build.order_of(operator)
        build.compute(operator, lambda x, i: x[i], [tensor(table), build.read(operator, 1, order)], order)
        return

    def gather(x: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
        if axis % rank == 0 and rank == 2:
            return functional.embedding(where, x)
        found = torch.index_select(x, axis % rank, where.reshape(-1))
        return found if len(indices.shape) == 1 else found.reshape(made)

    build.compute(operator, gather, [build.read(operator, 0), build.read(operator, 1)])


@lowering("DEPTH_TO_SPACE", "SPACE_TO_DEPTH")
def _depth_to_space(build: LiteRtBuilder, operator: FileOperator) -> None:
    size, (n, rows, columns, channels) = operator.option("blockSize", 1), operator.operand(0).shape
    made = operator.outputs[0].shape
    if operator.kind == "DEPTH_TO_SPACE":
        apart = (n, rows, columns, size, size, channels // size**2)
    else:
        apart = (n, rows // size, size, columns // size, size, channels)
    build.move(
        operator, 0, lambda x: x.reshape(apart), lambda x: x.permute(0, 1, 3, 2, 4, 5), lambda x: x.reshape(made)
    )


@lowering("RESIZE_BILINEAR")
def _resize_bilinear(build: LiteRtBuilder, operator: FileOperator) -> None:
    size, given = list(operator.outputs[0].shape[1:3]), list(operator.operand(0).shape[1:3])
    corners, centers = (bool(operator.option(n, False)) for n in ("alignCorners", "halfPixelCenters"))
    function: Function = partial(functional.interpolate, size=size, mode="bilinear", align_corners=corners)
    if corners or centers or size == given:
        return build.compute(operator, function, [build.read(operator, 0, FIRST)], FIRST)
    if operator.outputs[0].rounding is not None:
        raise operator.error("resizes from the corners of pixels", "half_pixel_centers or align_corners")
    rows, columns = (tensor(_from_corners(n, o)) for n, o in zip(given, size, strict=True))
    operands = [build.read(operator, 0, FIRST), rows, columns]
    build.compute(operator, lambda x, a, b: torch.matmul(torch.matmul(a, x), b.t()), operands, FIRST)


def _from_corners(given: int, made: int) -> npt.NDArray[np.float32]:
    """Return the weights [made, given] of linear interpolation between the corners of pixels."""
    place = np.arange(made, dtype=np.float32) * np.float32(given / made)
    first = np.minimum(np.floor(place).astype(np.int64), given - 1)
    weights, share = np.zeros((made, given), np.float32), place - first
    np.add.at(weights, (np.arange(made), first), 1 - share)
    np.add.at(weights, (np.arange(made), np.minimum(first + 1, given - 1)), share)
    return weights


@lowering("RESIZE_NEAREST_NEIGHBOR")
def _resize_nearest(build: LiteRtBuilder, operator: FileOperator) -> None:
    size, given = operator.outputs[0].shape[1:3], operator.operand(0).shape
    corners, centers = (bool(operator.option(n, False)) for n in ("alignCorners", "halfPixelCenters"))
    if not corners:
        function = partial(functional.interpolate, size=list(size), mode="nearest-exact" if centers else "nearest")
        return build.compute(operator, function, [build.read(operator, 0, FIRST)], FIRST)
    places = [np.arange(n) for n in given]
    for axis, made in enumerate(size, 1):
        ratio = np.float32(given[axis] - 1) / np.float32(made - 1) if made > 1 else np.float32(given[axis] / made)
        real = (np.arange(made, dtype=np.float32) + np.float32(0.5 * centers)) * ratio
        places[axis] = np.clip(np.floor(real + np.float32(0.5)).astype(np.int64), 0, given[axis] - 1)
    _pick(build, operator, places)


@lowering("SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND")
def _space_to_batch(build: LiteRtBuilder, operator: FileOperator) -> None:
    """Move blocks of the axes behind the batch to the batch, or back."""
    blocks, given = build.integers(operator, 1), operator.operand(0).shape
    pairs = np.array(build.integers(operator, 2)).reshape(-1, 2)
    count, made = len(blocks), operator.outputs[0].shape
    rest = tuple(given[1 + count :])
    if operator.kind == "SPACE_TO_BATCH_ND":
        flat = [int(n) for n in pairs[::-1].reshape(-1)]
        pad = partial(functional.pad, pad=(0, 0) * len(rest) + tuple(flat), value=0.0)
        sizes = [n + a + b for n, (a, b) in zip(given[1:], pairs, strict=False)]
        apart = (given[0], *(n for s, b in zip(sizes, blocks, strict=True) for n in (s // b, b)), *rest)
        axes = (*(2 * i + 2 for i in range(count)), 0, *(2 * i + 1 for i in range(count)))
        axes += tuple(range(1 + 2 * count, len(apart)))
        steps: list[Function] = [pad] if pairs.any() else []
        build.move(
            operator, 0, *steps, lambda x: x.reshape(apart), lambda x: x.permute(axes), lambda x: x.reshape(made)
        )
        return
    batch = given[0] // math.prod(blocks)
    apart = (*blocks, batch, *given[1:])
    axes = (count, *(n for i in range(count) for n in (count + 1 + i, i)), *range(2 * count + 1, len(apart)))
    whole = (batch, *(n * b for n, b in zip(given[1:], blocks, strict=False)), *rest)
    cuts = [slice(None), *(slice(int(a), n - int(b)) for (a, b), n in zip(pairs, whole[1:], strict=False))]
    functions: list[Function] = [lambda x: x.reshape(apart), lambda x: x.permute(axes), lambda x: x.reshape(whole)]
    build.move(operator, 0, *functions, *(cut(cuts, whole) if pairs.any() else ()))


@lowering("CUMSUM")
def _cumulative_sum(build: LiteRtBuilder, operator: FileOperator) -> None:
    ((axis,), exclusive, back) = build.integers(operator, 1), operator.option("exclusive"), operator.option("reverse")

    def whole(x: torch.Tensor) -> torch.Tensor:
        given = torch.flip(x, [axis]) if back else x
        summed = torch.cumsum(given, axis, dtype=x.dtype)
        summed = summed - given if exclusive else summed
        return torch.flip(summed, [axis]) if back else summed

    build.compute(operator, whole, [build.read(operator, 0)])


@lowering("GATHER_ND")
def _gather_nd(build: LiteRtBuilder, operator: FileOperator) -> None:
    """Gather slices at index rows, as a selection of rows of the flattened axes."""
    shape, made, depth = operator.operand(0).shape, operator.outputs[0].shape, operator.operand(1).shape[-1]
    sizes, rest = shape[:depth], shape[depth:]
    factors = torch.tensor([math.prod(sizes[i + 1 :]) for i in range(depth)], dtype=torch.int64)

    def gather(x: torch.Tensor, where: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
        flat = (where.to(torch.int64) * factors).sum(-1).reshape(-1)
        return torch.index_select(x.reshape(math.prod(sizes), *rest), 0, flat).reshape(made)

    build.compute(operator, gather, [build.read(operator, 0), build.read(operator, 1), factors])


@lowering("TOPK_V2")
def _largest(build: LiteRtBuilder, operator: FileOperator) -> None:
    (count,) = build.integers(operator, 1)
    x = build.read(operator, 0)
    build.compute(operator, lambda v: torch.topk(v, count).values, [x])
    build.compute(operator, lambda v: torch.topk(v, count).indices.to(torch.int32), [x], result=1)


@lowering("ONE_HOT")
def _one_hot(build: LiteRtBuilder, operator: FileOperator) -> None:
    (depth,), axis = build.integers(operator, 1), int(operator.option("axis", -1))
    on, off = (build.read(operator, i) for i in (2, 3))
    shape = [1] * (rank := len(operator.outputs[0].shape))
    shape[axis % rank] = depth
    numbers = torch.arange(depth, dtype=torch.int32).reshape(shape)

    def one_hot(where: torch.Tensor, a: torch.Tensor, b: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        return torch.where(where.unsqueeze(axis % rank) == numbers, a.reshape(()), b.reshape(()))

    build.compute(operator, one_hot, [build.read(operator, 0), on, off, numbers])


@lowering("REVERSE_SEQUENCE")
def _reverse_sequence(build: LiteRtBuilder, operator: FileOperator) -> None:
    """Reverse the first elements of each sequence, of constant lengths."""
    shape, lengths = operator.operand(0).shape, build.integers(operator, 1)
    axis, batch = operator.option("seqDim", 0), operator.option("batchDim", 0)
    steps = np.arange(shape[axis])
    rows = np.stack([np.where(steps < n, n - 1 - steps, steps) for n in lengths])
    view = [1] * len(shape)
    view[batch], view[axis] = rows.shape
    where = rows if batch < axis else rows.T
    at = torch.from_numpy(np.broadcast_to(where.reshape(view), shape).copy())
    build.compute(operator, lambda x, places: torch.gather(x, axis, places), [build.read(operator, 0), at])
