"""Weights left out with compensation by the others, on the grid of int8.

For a row w of a layer's weights and inputs x with second moments H = E[x x'], leaving out the weight q changes the
result least where w_q^2 / [H^-1]_qq is least, and the other weights make up for it best by
- w_q / [H^-1]_qq * [H^-1]_(q, :)  (optimal brain surgeon, Hassibi and Stork 1993).  All rows share H, and columns are
settled one after the other, so that one Cholesky factor of H^-1 holds all that is needed (SparseGPT, Frantar and
Alistarh 2023, arXiv 2301.00774).  A weight that stays is rounded to the grid of int8 on the way, and what rounding
changes is made up for in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from micronpu.ir.pattern import KEPT

_BLOCK = 128
"""Columns that are settled before those behind them are told, in one product."""
_MOST_PRODUCTS = 10**11
"""Of a fit by least squares; larger layers do without."""
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
    """Weights with at most two of each group other than zero.

    Args:
        weights: [O, columns].
        moments: [columns, columns], the second moments of the inputs.
        groups: first column and size of every group, in order.
        damping: part of the mean second moment that is added to each, so that H can be inverted.
        mask: [O, columns], which weights stay; chosen here unless given.
        bits: of the weights.

    Returns:
        [O, columns], each row on the grid of int8, or of fewer bits, that the row that was given has.
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
    weights: Tensor,
    factor: Tensor,
    step: Tensor,
    most: int,
    groups: Sequence[tuple[int, int]],
    mask: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Column after column on the grid or zero, what that changes made up for by the columns behind; and which stay.

    Args:
        factor: the upper Cholesky factor of H^-1.
        step: [O], of the grid of each row.
        most: of them that a weight may be from zero.
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
    """The weights that stay, by least squares: what went early could not know of what went later.

    Row by row the solution of H_kk w' = (H w)_k for the columns k that stay.
    """
    count = int(mask.sum(1).max())
    if not count or len(weights) * count**3 > _MOST_PRODUCTS:
        return weights * mask
    wanted = weights @ h
    fitted = torch.zeros_like(weights)
    rows_at_once = max(1, _BLOCK_VALUES // count**2)
    for start in range(0, len(weights), rows_at_once):
        rows = slice(start, start + rows_at_once)
        # Rows with fewer weights are filled up with columns that go, of which the equation says that they are zero.
        stays, columns = mask[rows].double().topk(count, dim=1)
        system = h[columns[:, :, None], columns[:, None, :]] * stays[:, :, None] * stays[:, None, :]
        system += torch.diag_embed(1 - stays)
        right = wanted[rows].gather(1, columns) * stays
        solved = torch.cholesky_solve(right[:, :, None], torch.linalg.cholesky(system))[:, :, 0]
        fitted[rows] = torch.zeros_like(fitted[rows]).scatter_(1, columns, solved)
    return fitted


def _damped(moments: Tensor, damping: float) -> Tensor:
    """The moments with what makes them a matrix that can be inverted."""
    h = moments.double().clone()
    diagonal = h.diagonal()
    diagonal[diagonal <= 0] = 1.0
    diagonal += damping * diagonal.mean().clamp(min=1e-12)
    return h
