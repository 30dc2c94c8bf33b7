"""Prune weights and compensate with the remaining ones, rounded to int8.

For a row w of a layer's weights and inputs x with second moments H = E[x x'], removing the weight q changes the result
least if w_q^2 / [H^-1]_qq is smallest, and the best compensation of the other weights is - w_q / [H^-1]_qq * [H^-1]_(q,
:)  (optimal brain surgeon, Hassibi and Stork 1993). All rows share H, and columns are processed in order, so that one
Cholesky factor of H^-1 suffices (SparseGPT, Frantar and Alistarh 2023, arXiv 2301.00774). Each remaining weight is
rounded to int8, and its rounding error is compensated in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from micronpu.ir.pattern import KEPT

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
    weights: Tensor,
    factor: Tensor,
    step: Tensor,
    most: int,
    groups: Sequence[tuple[int, int]],
    mask: Tensor | None,
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
