"""Prune weights, compensate with the remaining ones, rounded to int8, and fit the layers one after the other.

For a row w of a layer's weights and inputs x with second moments H = E[x x'], removing the weight q changes the result
least if w_q^2 / [H^-1]_qq is smallest, and the best compensation of the other weights is - w_q / [H^-1]_qq * [H^-1]_(q,
:)  (optimal brain surgeon, Hassibi and Stork 1993). All rows share H, and columns are processed in order, so that one
Cholesky factor of H^-1 suffices (SparseGPT, Frantar and Alistarh 2023, arXiv 2301.00774). Each remaining weight is
rounded to int8, and its rounding error is compensated in the same way.

A layer after sparse ones reads changed values. With x its input in the sparse network and y its result in the dense
one, the least-squares fit of W x + b to y compensates for the losses of earlier layers, in sparse and dense layers
alike (GPTAQ does so column by column, Li et al. 2025, arXiv 2504.02692). Both networks are traversed together, so that
a layer is fitted to the inputs from already fitted layers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from micronpu.frontend.graphs import GraphModule, Node, by_name, map_arg
from micronpu.frontend.program import arguments, overload_name
from micronpu.frontend.run import Run, Values
from micronpu.ir.facts import Given
from micronpu.ir.pattern import KEPT
from micronpu.ops.convolution import CONVOLUTIONS
from micronpu.ops.recurrent import RECURRENT
from micronpu.quantize.running import function_of
from micronpu.transforms.sparsity.layers import (
    SAMPLES_PER_COLUMN,
    Matrix,
    PrunableLayer,
    Row,
    batches,
    read_by_kernel,
    tensor_of,
)

_BLOCK = 128
"""Columns processed before later columns are updated in one product."""
_MOST_PRODUCTS = 10**11
"""Maximum number of products of a least-squares fit; larger layers skip it."""
_BLOCK_VALUES = 2 * 10**7


def pruned(
    weights: Tensor,
    moments: Tensor,
    groups: Sequence[tuple[int, int]],
    *,
    damping: float,
    mask: Tensor | None = None,
    bits: int = 8,
) -> Tensor:
    """Return weights with at most two nonzero ones in each group.

    Args:
        weights: [O, columns].
        moments: [columns, columns], the second moments of the inputs.
        groups: first column and size of every group, in order.
        damping: fraction of the mean second moment added to each, so that H is invertible.
        mask: [O, columns], weights to keep; default: chosen here.
        bits: of the weights.

    Returns:
        [O, columns], each row rounded to multiples of the original row's scale for int8, or for fewer bits.
    """
    h = _damped(moments, damping)
    w = weights.double()
    most = 2 ** (bits - 1) - 1
    step = (w.abs().amax(1) / most).clamp(min=1e-30)
    factor = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(h)), upper=True)
    if mask is None:
        _, mask = _settled(w, factor, step, most, groups, None)
        w = _fitted(w, h, mask)
    return _settled(w, factor, step, most, groups, mask)[0].to(weights.dtype)


def _settled(
    weights: Tensor, factor: Tensor, step: Tensor, most: int, groups: Sequence[tuple[int, int]], mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Round or prune column by column, compensating in later columns; return the weights and the mask.

    Args:
        factor: the upper Cholesky factor of H^-1.
        step: [O], the scale of each row.
        most: maximum magnitude of a quantized weight.
    """
    w = weights.clone()
    settled, stays = torch.zeros_like(w), torch.zeros_like(w, dtype=torch.bool)
    waiting: list[tuple[int, int]] = list(groups)
    while waiting:
        start = waiting[0][0]
        block = [g for g in waiting if g[0] + g[1] <= start + _BLOCK] or waiting[:1]
        waiting = waiting[len(block) :]
        end = block[-1][0] + block[-1][1]
        errors = torch.zeros(len(w), end - start, dtype=w.dtype)
        for first, size in block:
            chosen = slice(first, first + size)
            if mask is not None:
                kept = mask[:, chosen]
            else:
                worth = (w[:, chosen] / factor.diagonal()[chosen]) ** 2
                kept = torch.ones_like(worth, dtype=torch.bool)
                kept.scatter_(1, worth.argsort(dim=1, stable=True)[:, : max(size - KEPT, 0)], False)
            stays[:, chosen] = kept
            for column in range(first, first + size):
                old = w[:, column]
                new = (old / step).round().clamp(-most, most) * step * kept[:, column - first]
                error = (old - new) / factor[column, column]
                settled[:, column] = new
                w[:, column:end] -= error[:, None] * factor[column, column:end]
                errors[:, column - start] = error
        w[:, end:] -= errors @ factor[start:end, end:]
    return settled, stays


def _fitted(weights: Tensor, h: Tensor, mask: Tensor) -> Tensor:
    """Refit the remaining weights by least squares, since early pruning ignores later pruning.

    Solves H_kk w' = (H w)_k for each row and its remaining columns k.
    """
    count = int(mask.sum(1).max())
    if not count or len(weights) * count**3 > _MOST_PRODUCTS:
        return weights * mask
    wanted = weights @ h
    fitted = torch.zeros_like(weights)
    rows_at_once = max(1, _BLOCK_VALUES // count**2)
    for start in range(0, len(weights), rows_at_once):
        rows = slice(start, start + rows_at_once)
        # Rows with fewer weights are padded with pruned columns, whose equations give zero.
        stays, columns = mask[rows].double().topk(count, dim=1)
        system = h[columns[:, :, None], columns[:, None, :]] * stays[:, :, None] * stays[:, None, :]
        system += torch.diag_embed(1 - stays)
        right = wanted[rows].gather(1, columns) * stays
        solved = torch.cholesky_solve(right[:, :, None], torch.linalg.cholesky(system))[:, :, 0]
        fitted[rows] = torch.zeros_like(fitted[rows]).scatter_(1, columns, solved)
    return fitted


def _damped(moments: Tensor, damping: float) -> Tensor:
    """The moments, damped so that the matrix is invertible."""
    h = moments.double().clone()
    diagonal = h.diagonal()
    diagonal[diagonal <= 0] = 1.0
    diagonal += damping * diagonal.mean().clamp(min=1e-12)
    return h


_RIDGE = 0.3
"""Regularization toward the current weights, relative to the mean second moment, because the samples are few."""
_MOST_BYTES = 2**30
"""Maximum bytes of intermediate values of both networks; if exceeded, fewer samples are used."""
_MOST_COLUMNS = 2048
"""Maximum columns of a fitted dense layer; the fit takes time cubic in them."""


def refit(
    student: GraphModule,
    teacher: GraphModule,
    layers: Sequence[PrunableLayer],
    given: Sequence[PrunableLayer],
    pruning: Sequence[PrunableLayer],
    rows: Sequence[Row],
    *,
    damping: float,
    progress: Callable[[float], None] = lambda done: None,
) -> None:
    """Fit the layers of a network in place; those for which `can_be_fitted` is False stay unchanged.

    Args:
        teacher: the same program with the original weights.
        given: those of them with 2:4 sparsity; their zeros are kept.
        pruning: those of them to make sparse.
    """
    count = min(len(rows), max(_MOST_BYTES // max(2 * _bytes(student), 1), 1))
    walk = _PairedRun(student, teacher, list(batches(student, rows[:: -(-len(rows) // count)])))
    nodes = list(student.graph.nodes)
    fitted = {layer.nodes[0]: layer for layer in layers if can_be_fitted(student, layer)}
    with torch.no_grad():
        for number, node in enumerate(nodes):
            walk.compute(walk.teachers)
            layer = fitted.get(node.name)
            if layer is not None:
                _fit(node, layer.matrices[0], walk, layer in given, layer in pruning, damping)
            walk.compute(walk.students)
            progress((number + 1) / len(nodes))


def can_be_fitted(model: GraphModule, layer: PrunableLayer) -> bool:
    """True if a layer is one product of its weights and the result of one node."""
    if len(layer.nodes) > 1 or len(layer.matrices) > 1:
        return False
    node = by_name(model)[layer.nodes[0]]
    return overload_name(node) not in RECURRENT and arguments(node).get("groups", 1) == 1


class _PairedRun:
    """Runs two networks of one program in parallel, node by node on all samples.

    Attributes:
        mine, wanted: results of the nodes of the student and the teacher for each part, until their last use.
        students, teachers: the runs that compute them, node by node.
    """

    def __init__(self, student: GraphModule, teacher: GraphModule, parts: Sequence[Row]) -> None:
        self.student, self.parts = student, parts
        self.mine: list[Values] = [{} for _ in parts]
        self.wanted: list[Values] = [{} for _ in parts]
        runs = (Run(student, functools.partial(function_of, model)) for model in (student, teacher))
        self.students, self.teachers = (
            [run.each(own, *part) for own, part in zip(values, parts, strict=True)]
            for run, values in zip(runs, (self.mine, self.wanted), strict=True)
        )

    def compute(self, runs: Sequence[Iterator[object]]) -> None:
        """Compute the result of the next node for each part, of `teachers` or `students`."""
        for run in runs:
            next(run)

    def __len__(self) -> int:
        return sum(len(part[0]) for part in self.parts)


def _last_reads(model: GraphModule) -> dict[Node, list[Node]]:
    """The nodes that are not read after a node."""
    last = {read: node for node in model.graph.nodes for read in (node, *node.all_input_nodes)}
    found: dict[Node, list[Node]] = {}
    for read, node in last.items():
        found.setdefault(node, []).append(read)
    found.pop(model.graph.output_node(), None)
    return found


def _bytes(model: GraphModule) -> int:
    """Maximum memory in bytes of the values of one sample."""

    def size(node: Node) -> int:
        value = node.meta.get("val")
        if node.op == "get_attr" or not isinstance(value, Tensor):
            return 0
        sizes = [s for s in value.shape[1:] if isinstance(s, int)]
        return int(torch.Size(sizes).numel()) * 2 * value.element_size()  # in double precision

    frees, alive, most = _last_reads(model), 0, 0
    for node in model.graph.nodes:
        alive += size(node)
        most = max(most, alive)
        alive -= sum(size(read) for read in frees.get(node, ()))
    return most


class _Sums:
    """Mean products of a layer's inputs and target results."""

    def __init__(self, rows: int, columns: int) -> None:
        self._per_row = max(SAMPLES_PER_COLUMN * columns // rows, 1)
        self._generator = torch.Generator().manual_seed(0)
        self.count = 0
        self.xx = self.yx = self.x = self.y = torch.zeros((), dtype=torch.float64)

    def add(self, node: Node, matrix: Matrix, given: Given, y: Tensor) -> None:
        if overload_name(node) in CONVOLUTIONS:
            x, sampled = read_by_kernel(given, self._per_row, self._generator, y)
            assert sampled is not None
            y = sampled
        else:
            x, y = given["input"].flatten(0, -2), y.flatten(0, -2)
            chosen = torch.randperm(len(x), generator=self._generator)[: self._per_row * len(given["input"])]
            x, y = x[chosen], y[chosen]
        x = x if matrix.order is None else x[:, matrix.order]
        self.count += len(x)
        x, y = x.double(), y.double()
        self.xx, self.yx = self.xx + x.T @ x, self.yx + y.T @ x
        self.x, self.y = self.x + x.sum(0), self.y + y.sum(0)


def _fit(node: Node, matrix: Matrix, walk: _PairedRun, keeps: bool, prunes: bool, damping: float) -> None:
    """Fit a layer's weights and bias to its target results."""
    if not prunes and matrix.columns > _MOST_COLUMNS:
        return
    given = arguments(node)
    read, parts = given["input"], list(zip(walk.mine, walk.wanted, strict=True))
    if not prunes and all(torch.equal(mine[read], wanted[read]) for mine, wanted in parts):
        return
    sums = _Sums(len(walk), matrix.columns)
    for mine, wanted in parts:
        values = {name: map_arg(value, mine.__getitem__) for name, value in given.items()}
        sums.add(node, matrix, values, wanted[node])
    if not prunes and sums.count < matrix.columns:
        return
    weight, bias = tensor_of(walk.student, matrix.attribute), given.get("bias")
    before = matrix.rows(weight).double()
    xx, yx = sums.xx / sums.count, sums.yx / sums.count
    x, y = sums.x / sums.count, sums.y / sums.count
    fits_bias = isinstance(bias, Node) and bias.op == "get_attr" and len(bias.users) == 1
    if fits_bias:
        xx, yx = xx - torch.outer(x, x), yx - torch.outer(y, x)
    elif bias is not None:
        yx = yx - torch.outer(walk.mine[0][bias].double(), x)
    ridge = _RIDGE * xx.diagonal().mean().clamp(min=1e-12)
    system = xx + ridge * torch.eye(len(xx), dtype=xx.dtype)
    weights = torch.cholesky_solve((yx + ridge * before).T, torch.linalg.cholesky(system)).T
    if keeps or prunes:
        mask = before != 0 if keeps else None
        weights = pruned(weights, xx, matrix.groups, damping=damping, mask=mask)
    weight.copy_(matrix.weights(weights.to(weight.dtype)))
    if fits_bias:
        assert isinstance(bias, Node)
        tensor_of(walk.student, str(bias.target)).copy_(y - weights @ x)
