"""Lowerings of ONNX operators that move, select or repeat elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from operator import methodcaller

import torch
from torch.nn import functional

from micronpu.base.errors import UnsupportedError
from micronpu.frontend.model_files.network import Function, Operand
from micronpu.frontend.model_files.onnx_nodes import DAMAGED, DTYPES, LOWERINGS, Lowering, OnnxNode, lowering
from micronpu.frontend.model_files.onnx_operators import padded

# ---------------------------------------------------------------- shapes


@lowering("Shape")
def _shape(node: OnnxNode) -> None:
    start, end = node.attributes("start", "end")
    node.define(torch.tensor(list(node.meta(0).shape)[start or 0 : end], dtype=torch.int64))


@lowering("Size")
def _size(node: OnnxNode) -> None:
    node.define(torch.tensor(node.meta(0).numel(), dtype=torch.int64))


@lowering("ConstantOfShape")
def _filled(node: OnnxNode) -> None:
    given, sizes = node.attribute("value"), node.integers(0) or []
    value = torch.zeros(1) if given is None else node.builder.constant(given, node.name)
    node.builder.check_shape(node.name, sizes, constant=True)
    node.define(value.reshape(1).expand(tuple(sizes)).clone())


@lowering("EyeLike")
def _eye(node: OnnxNode) -> None:
    kind, diagonal, like = node.attribute("dtype"), node.attribute("k"), node.meta(0)
    dtype = like.dtype if kind is None else DTYPES.get(kind)
    if dtype is None:
        raise node.error(f"makes the element type {kind}", "float32, int32, int64 or bool")
    rows, columns = like.shape
    node.define((torch.arange(columns)[None] - torch.arange(rows)[:, None] == diagonal).to(dtype))


@lowering("Range")
def _range(node: OnnxNode) -> None:
    start, limit, step = (node.required(i) for i in range(3))
    count = math.ceil((float(limit) - float(start)) / float(step))
    node.builder.check_shape(node.name, [count], constant=True)
    node.define(torch.arange(start.item(), limit.item(), step.item(), dtype=start.dtype))


@lowering("Reshape")
def _reshape(node: OnnxNode) -> None:
    given, keeps = node.meta(0).shape, not node.flag("allowzero")
    sizes = [given[i] if n == 0 and keeps else n for i, n in enumerate(node.integers(1) or [])]
    node.emit(lambda x: x.reshape(sizes), [node.operand(0)])


def _flattened(node: OnnxNode) -> Function:
    rank, axis = node.meta(0).dim(), node.attribute("axis")
    return methodcaller("reshape", math.prod(node.meta(0).shape[: axis + rank if axis < 0 else axis]), -1)


def _expanded(node: OnnxNode) -> Function:
    sizes = torch.broadcast_shapes(tuple(node.meta(0).shape), tuple(node.integers(1) or ()))
    return methodcaller("expand", sizes)


def _of_first(make: Callable[[OnnxNode], Function]) -> Lowering:
    """Return the lowering as a function of the first operand, by the node's attributes and constants."""
    return lambda node: node.emit(make(node), [node.operand(0)])


LOWERINGS |= {
    "Flatten": _of_first(_flattened),
    "Transpose": _of_first(
        lambda node: methodcaller("permute", node.attribute("perm") or [*reversed(range(node.meta(0).dim()))])
    ),
    "Expand": _of_first(_expanded),
    "Tile": _of_first(lambda node: methodcaller("repeat", node.integers(1) or [])),
}


@lowering("Squeeze", "Unsqueeze")
def _squeeze(node: OnnxNode) -> None:
    axes, shape = node.integers(1, "axes"), list(node.meta(0).shape)
    if node.kind == "Squeeze":
        gone = [i for i, n in enumerate(shape) if n == 1] if axes is None else [a % len(shape) for a in axes]
        sizes = [n for i, n in enumerate(shape) if i not in gone]
    else:
        rank, sizes = len(shape) + len(axes or ()), shape
        for axis in sorted(a % rank for a in axes or ()):
            sizes.insert(axis, 1)
    node.emit(lambda x: x.reshape(sizes), [node.operand(0)])


@lowering("DepthToSpace", "SpaceToDepth")
def _depth_to_space(node: OnnxNode) -> None:
    size, (n, channels, rows, columns) = node.attribute("blocksize"), node.meta(0).shape
    if node.kind == "DepthToSpace" and node.attribute("mode") == "CRD":
        node.emit(partial(functional.pixel_shuffle, upscale_factor=size))
        return
    if node.kind == "DepthToSpace":
        apart, turned = (n, size, size, channels // size**2, rows, columns), (0, 3, 4, 1, 5, 2)
        made = (n, channels // size**2, rows * size, columns * size)
    else:
        apart, turned = (n, channels, rows // size, size, columns // size, size), (0, 3, 5, 1, 2, 4)
        made = (n, channels * size**2, rows // size, columns // size)
    node.emit(lambda x: x.reshape(apart).permute(turned).reshape(made))


# ---------------------------------------------------------------- parts


@lowering("Concat")
def _joined(node: OnnxNode) -> None:
    axis = node.axis()
    node.emit(lambda *given: torch.cat(given, axis))


@lowering("Split")
def _split(node: OnnxNode) -> None:
    axis, parts = node.axis(), node.attribute("num_outputs")
    size = node.meta(0).shape[axis]
    sizes = node.integers(1, "split")
    if sizes is None:
        part = -(-size // (parts or len(node.outputs)))
        sizes = [min(part, size - start) for start in range(0, size, part)]
    if len(sizes) != len(node.outputs):
        raise node.error(f"has {len(node.outputs)} results, and splits into {len(sizes)}", DAMAGED)
    for name, start, length in zip(node.outputs, [sum(sizes[:i]) for i in range(len(sizes))], sizes, strict=True):
        # One step for each part, so that each may have its own quantization.
        narrow = partial(torch.narrow, dim=axis, start=start, length=length)
        OnnxNode(node.builder, node.kind, name, node.inputs, (name,), {}, node.opset).emit(narrow, [node.operand(0)])


@lowering("Slice")
def _slice(node: OnnxNode) -> None:
    starts, ends = node.integers(1, "starts") or [], node.integers(2, "ends") or []
    shape = node.meta(0).shape
    axes = node.integers(3, "axes") or list(range(len(starts)))
    steps = node.integers(4) or [1] * len(starts)
    cuts, turned = [slice(None)] * len(shape), []
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise node.error("has starts, ends, axes and steps of unequal lengths", DAMAGED)
    for start, end, axis, step in zip(starts, ends, (a % len(shape) for a in axes), steps, strict=True):
        first, last, by = slice(start, end, step).indices(shape[axis])
        if by > 0:
            cuts[axis] = slice(first, max(last, first), by)
            continue
        # PyTorch has no negative steps: take the elements in ascending order, and flip them.
        picked = range(first, last, by)
        cuts[axis] = slice(picked[-1], picked[0] + 1, -by) if picked else slice(0, 0)
        turned.append(axis)
    node.emit(lambda x: torch.flip(x[tuple(cuts)], turned) if turned else x[tuple(cuts)], [node.operand(0)])


@lowering("Trilu")
def _triangle(node: OnnxNode) -> None:
    (diagonal,) = node.integers(1) or [0]
    function = torch.triu if node.flag("upper") else torch.tril
    node.emit(lambda x: function(x, diagonal), [node.operand(0)])


@lowering("Pad")
def _pad(node: OnnxNode) -> None:
    mode, fill, shape = node.attribute("mode"), node.constant(2), node.meta(0).shape
    flat, rank = node.integers(1, "pads") or [], len(shape)
    value = fill.item() if fill is not None and fill.numel() else node.attribute("value") or 0
    axes = [a % rank for a in node.integers(3) or range(rank)]
    if len(flat) != 2 * len(axes):
        raise node.error(f"has {len(flat)} pads for {len(axes)} axes", DAMAGED)
    pairs = [(0, 0)] * rank
    for i, axis in enumerate(axes):
        pairs[axis] = (flat[i], flat[i + len(axes)])
    modes = {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}
    if mode == "constant":
        node.emit(partial(padded, pads=pairs, value=value), [node.operand(0)])
        return
    if mode not in modes:
        raise node.error(f"pads in the mode {mode}", f"one of constant, {', '.join(modes)}")
    moved = [i for i, pair in enumerate(pairs) if pair != (0, 0)]
    first = min(moved, default=rank - 1)
    counts = [k for k in (1, 2, 3) if k + 1 <= rank <= k + 2 and rank - k <= first]  # axes that PyTorch pads
    if counts and all(0 <= n < shape[i] for i, pair in enumerate(pairs) for n in pair):
        ends = [n for pair in reversed(pairs[rank - counts[0] :]) for n in pair]
        node.emit(lambda x: functional.pad(x, ends, mode=modes[mode]), [node.operand(0)])
        return
    where = [_sources(shape[i], pairs[i], mode) for i in moved]
    node.emit(lambda x, *indices: picked(x, moved, indices), [node.operand(0), *where])


def _sources(size: int, pads: tuple[int, int], mode: str) -> torch.Tensor:
    """Return the index that each element of a padded axis is read from."""
    position = torch.arange(-pads[0], size + pads[1])
    if mode == "edge":
        return position.clamp(0, size - 1)
    if mode == "wrap":
        return position % size
    there = position % max(2 * (size - 1), 1)
    return torch.minimum(there, 2 * (size - 1) - there)


def picked(x: torch.Tensor, axes: Sequence[int], where: Sequence[torch.Tensor]) -> torch.Tensor:
    """Select indices along each of several axes."""
    for axis, indices in zip(axes, where, strict=True):
        x = torch.index_select(x, axis, indices)
    return x


# ---------------------------------------------------------------- indices


def _indices(node: OnnxNode, i: int, size: int) -> Operand:
    """Return an operand of indices; constants count from the start, also those that count from the end."""
    where = node.operand(i)
    return (where + size * (where < 0)).to(torch.int64) if isinstance(where, torch.Tensor) else where


@lowering("Gather")
def _gather(node: OnnxNode) -> None:
    axis, rank = node.axis(), node.meta(0).dim()
    where = _indices(node, 1, node.meta(0).shape[axis])
    if isinstance(where, torch.Tensor) and where.dim() == 0:
        node.emit(partial(torch.select, dim=axis, index=int(where)), [node.operand(0)])
        return

    def gather(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        if axis == 0 and rank == 2:
            return functional.embedding(i, x)
        made = torch.index_select(x, axis, i.reshape(-1))
        return made.reshape(*x.shape[:axis], *i.shape, *x.shape[axis + 1 :])

    node.emit(gather, [node.operand(0), where])


@lowering("GatherElements")
def _gather_elements(node: OnnxNode) -> None:
    axis = node.axis()
    size = node.meta(0).shape[axis]

    def gather(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return torch.gather(x, axis, torch.where(i < 0, i + size, i).to(torch.int64) if computed else i)

    where = _indices(node, 1, size)
    computed = not isinstance(where, torch.Tensor)
    node.emit(gather, [node.operand(0), where])


_SCATTERS = {"none": None, "add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def _scattered(x: torch.Tensor, axis: int, where: torch.Tensor, values: torch.Tensor, how: str | None) -> torch.Tensor:
    if how is None:
        return torch.scatter(x, axis, where, values)
    return torch.scatter_reduce(x, axis, where, values, how)


@lowering("ScatterElements", "Scatter")
def _scatter_elements(node: OnnxNode) -> None:
    axis, how = node.axis(), _SCATTERS[node.attribute("reduction") or "none"]
    size = node.meta(0).shape[axis]

    def scatter(x: torch.Tensor, i: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return _scattered(x, axis, torch.where(i < 0, i + size, i).to(torch.int64), values, how)

    node.emit(scatter, [node.operand(0), _indices(node, 1, size), node.operand(2)])


def _positions(indices: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """Return positions in a row-major order from indices along the last axis."""
    made = torch.zeros(indices.shape[:-1], dtype=torch.int64, device=indices.device)
    for i, size in enumerate(sizes):
        index = indices[..., i].to(torch.int64)
        made = made * size + torch.where(index < 0, index + size, index)
    return made


@lowering("ScatterND")
def _scatter_rows(node: OnnxNode) -> None:
    how, shape, where = _SCATTERS[node.attribute("reduction") or "none"], node.meta(0).shape, node.meta(1)
    depth = where.shape[-1]
    rows, length = math.prod(shape[:depth]), math.prod(shape[depth:])

    def scatter(x: torch.Tensor, i: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        at = _positions(i, shape[:depth]).reshape(-1, 1).expand(-1, length)
        return _scattered(x.reshape(rows, length), 0, at, values.reshape(-1, length), how).reshape(x.shape)

    node.emit(scatter)


@lowering("GatherND")
def _gather_rows(node: OnnxNode) -> None:
    batch, shape, where = node.attribute("batch_dims") or 0, node.meta(0).shape, node.meta(1).shape
    depth = where[-1]
    outer, inner = math.prod(shape[:batch]), shape[batch : batch + depth]
    rows, length = math.prod(inner), math.prod(shape[batch + depth :])
    made = (*where[:-1], *shape[batch + depth :])

    def gather(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        at = _positions(i, inner).reshape(outer, -1)
        if outer == 1:
            return torch.index_select(x.reshape(rows, length), 0, at.reshape(-1)).reshape(made)
        whole = at[..., None].expand(-1, -1, length)
        return torch.gather(x.reshape(outer, rows, length), 1, whole).reshape(made)

    node.emit(gather)


@lowering("TopK")
def _largest(node: OnnxNode) -> None:
    (count,), axis = node.integers(1, "k") or [0], node.axis()
    node.ignores("sorted")
    descending = node.attribute("largest") is None or node.flag("largest")

    def top(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if count == 1:
            return torch.topk(x, 1, axis, descending)
        values, where = torch.sort(x, dim=axis, descending=descending, stable=True)  # the first of equal elements
        return values.narrow(axis, 0, count), where.narrow(axis, 0, count)

    node.emit(top, [node.operand(0)])


@lowering("OneHot")
def _one_hot(node: OnnxNode) -> None:
    depth, values = int(node.required(1).reshape(-1)[0]), node.required(2)
    rank = node.meta(0).dim() + 1
    axis = node.axis(rank=rank)
    node.builder.check_shape(node.name, (depth, *node.meta(0).shape))
    numbers = torch.arange(depth).reshape(-1, *[1] * (rank - 1 - axis))

    def one_hot(i: torch.Tensor, n: torch.Tensor, off: torch.Tensor, on: torch.Tensor) -> torch.Tensor:
        i = i.to(torch.int64)
        return torch.where(torch.where(i < 0, i + depth, i).unsqueeze(axis) == n, on, off)

    node.emit(one_hot, [node.operand(0), numbers, values[0], values[1]])


@lowering("GridSample")
def _grid_sample(node: OnnxNode) -> None:
    mode, border, corners = *node.attributes("mode", "padding_mode"), node.flag("align_corners")
    known = dict.fromkeys(("linear", "bilinear"), "bilinear") | dict.fromkeys(("cubic", "bicubic"), "bicubic")
    known["nearest"] = "nearest"
    if mode not in known:
        raise node.error(f"samples in the mode {mode}", f"one of {', '.join(known)}")
    node.constant(1)
    node.emit(partial(functional.grid_sample, mode=known[mode], padding_mode=border, align_corners=corners))


@lowering("NonZero", "Unique", "Compress", "NonMaxSuppression", "StringSplit")
def _of_data(node: OnnxNode) -> None:
    found = (node.builder.values.get(name) for name in node.inputs if name)
    if node.kind in ("NonMaxSuppression", "StringSplit") or not all(isinstance(v, torch.Tensor) for v in found):
        hint = "the model up to this node; what is behind it in the application"
        if node.kind == "NonMaxSuppression":
            hint += " (micronpu deploy --with nms writes it)"
        raise node.error("has a result whose size depends on data, and a program has fixed sizes", hint)
    node.builder.by_reference(node)


@lowering("HannWindow", "HammingWindow", "BlackmanWindow", "MelWeightMatrix")
def _computed(node: OnnxNode) -> None:
    numbers = [float(node.required(i)) for i in range(len(node.inputs))]
    node.builder.check_shape(node.name, [math.ceil(math.prod(numbers[:2]))], constant=True)
    node.builder.by_reference(node)


@lowering("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
def _random(node: OnnxNode) -> None:
    raise UnsupportedError(f"{node} draws random numbers.", hint="an input of the model in its place")
