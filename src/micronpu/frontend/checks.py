"""Checks of what the user hands in, before anything is computed from it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.fx import GraphModule

from micronpu.errors import ModelError


def check_evaluation_mode(model: nn.Module) -> None:
    """Raises `ModelError` where the model or a part of it is in training mode."""
    for name, module in model.named_modules():
        # The modules of an exported program have no eval(); what they do was decided when they were exported.
        if module.training and not isinstance(module, GraphModule):
            what = f"`{name}` ({type(module).__name__}) of the model" if name else "The model"
            raise ModelError(
                f"{what} {type(model).__name__} is in training mode, in which dropout and batch norm change results.",
                hint="model.eval() before compiling",
            )


def check_parameters(module: nn.Module) -> None:
    """Raises `ModelError` where a parameter holds NaN or infinity."""
    for name, parameter in module.named_parameters():
        if parameter.is_floating_point() and not torch.isfinite(parameter).all():
            raise ModelError(
                f"The parameter `{name}` of the model holds NaN or infinity, which int8 cannot express.",
                hint="look for a training that diverged, or for a checkpoint that was loaded in part",
            )


def check_examples(module: GraphModule, examples: Sequence[torch.Tensor]) -> None:
    """Raises `ModelError` where example inputs do not fit the program that is given with them."""
    expected = [n.meta.get("val") for n in module.graph.nodes if n.op == "placeholder"]
    if len(expected) != len(examples):
        raise ModelError(
            f"`example_inputs` holds {len(examples)} tensors, but the program takes {len(expected)}.",
            hint="the inputs that the program was exported with",
        )
    for position, (wanted, given) in enumerate(zip(expected, examples, strict=True)):
        if isinstance(wanted, torch.Tensor) and (given.dtype != wanted.dtype or given.shape != wanted.shape):
            raise ModelError(
                f"Example input {position} is {_type(given)}, but the program takes {_type(wanted)}.",
                hint="the inputs that the program was exported with",
            )


def _type(tensor: torch.Tensor) -> str:
    """``float32[1, 3, 32, 32]``."""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
