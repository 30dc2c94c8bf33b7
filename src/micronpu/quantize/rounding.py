"""Adaptive rounding: choice of rounding weights up or down.

AdaRound (Nagel et al., 2020) minimises the squared error of a layer's result over all roundings of its weights to one
of their two neighbours. With the second moments M of the layer's operands that is, for each output channel,

    error(e) = e M e^T,     e = rounded weights - weights

AdaRound relaxes the choice and trains it. Here the weight with the largest gain is moved to its other neighbour,
repeatedly, until none gains: the same objective, in a second, and reproducible.
"""

from __future__ import annotations

import torch


def adaptive_rounding(
    weights: torch.Tensor, step: torch.Tensor, moments: torch.Tensor, most: int, samples: int
) -> torch.Tensor:
    """Round weights [O, K] to multiples of ``step`` [O, 1]; zeros stay zero.

    Args:
        moments: [K, K], mean products of the values that are multiplied with the weights.
        most: the largest magnitude of the integers.
        samples: number of samples in the moments; moments of few samples count less.
    """
    weights, step = weights.double(), step.double()
    size = weights.shape[1]
    trust = samples / (samples + size)
    moments = moments.double()
    diagonal = moments.diagonal()
    moments = trust * moments + (1 - trust) * torch.diag(diagonal)
    ratio = weights / step
    low = torch.floor(ratio).clamp(-most, most - 1)
    current = torch.round(ratio).clamp(-most, most)
    error = current * step - weights
    slope = error @ moments
    # A zero may belong to a sparsity pattern of the NPU, which another weight would break.
    stays = (ratio.abs() > most) | (weights == 0)
    active = torch.arange(len(weights))
    for _ in range(2 * size):
        # The other neighbour of each weight, its distance, and the change of the error.
        move = torch.where(current[active] > low[active], -1.0, 1.0) * step[active]
        change = 2 * move * slope[active] + move * move * diagonal
        gain, place = change.masked_fill(stays[active], 0.0).min(1)
        going = gain < -1e-12 * (1e-30 + (error[active] * slope[active]).sum(1).abs())
        if not bool(going.any()):
            break
        active, place = active[going], place[going]
        moved = move[going].gather(1, place[:, None])
        current[active, place] += torch.sign(moved[:, 0])
        error[active, place] += moved[:, 0]
        slope[active] += moved * moments[place]
    return (current * step).float()
