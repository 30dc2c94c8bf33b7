"""Keep zero weights at zero while the network is trained by other code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from micronpu.ir.pattern import KEPT
from micronpu.transforms.sparsity.layers import Matrix, PrunableLayer, find_layers


def kept_weights(matrix: Matrix, weight: Tensor) -> Tensor:
    """Mask of the weights to keep: the two largest of every group of four, or fewer if it has fewer nonzero ones."""
    rows = matrix.rows(weight.detach().abs())
    mask = torch.zeros_like(rows, dtype=torch.bool)
    for first, size in matrix.groups:
        group = slice(first, first + size)
        order = rows[:, group].argsort(dim=1, descending=True, stable=True)[:, :KEPT]
        mask[:, group] = torch.zeros_like(rows[:, group], dtype=torch.bool).scatter_(1, order, True)
    return matrix.weights(mask)


@contextmanager
def pattern_kept(module: nn.Module, masks: Mapping[str, Tensor]) -> Iterator[None]:
    """Keep weights zero while the module is trained, by masking their gradients.

    Args:
        masks: weights to keep, by parameter name.
    """
    parameters = {name: p for name, p in module.named_parameters() if name in masks}

    def apply(*_: Any) -> None:
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.mul_(masks[name])

    def hook(mask: Tensor) -> Any:
        return lambda gradient: gradient * mask

    apply()
    handles = [p.register_hook(hook(masks[name])) for name, p in parameters.items() if p.requires_grad]
    # Weight decay and momentum leave zeros unchanged; weights assigned by other code are masked at the next call.
    handles.append(module.register_forward_pre_hook(apply))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        apply()


def masks_of(model: nn.Module, layers: Iterator[PrunableLayer] | list[PrunableLayer]) -> dict[str, Tensor]:
    """The masks of layers, by tensor name."""
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    return {m.attribute: kept_weights(m, tensors[m.attribute]) for layer in layers for m in layer.matrices}


def keep_what_is_sparse(program: GraphModule, trained: nn.Module) -> AbstractContextManager[None]:
    """Keep the zeros of layers with 2:4 sparsity while a module is trained.

    Args:
        program: the float program exported from the module, with the same parameter names.
    """
    layers, _ = find_layers(program)
    return pattern_kept(trained, masks_of(program, [layer for layer in layers if layer.is_sparse(program)]))
