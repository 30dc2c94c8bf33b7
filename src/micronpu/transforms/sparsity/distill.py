"""Training without labels: the sparse network learns the outputs of the dense one on the calibration inputs.

Since there are few inputs, they are augmented: images are shifted and mirrored, and pairs are mixed. The dense
network's outputs are the targets, and so are the outputs of its layers: with few inputs, all layers contain more
information than the outputs alone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.graph import CodeGen

from micronpu.base.errors import ModelError
from micronpu.frontend.graphs import GraphModule
from micronpu.transforms.sparsity.layers import Row, floats, joined, takes_any_batch
from micronpu.transforms.sparsity.options import SparsityOptions

_TEMPERATURE = 2.0
_LEAST_PICTURE = 12
"""Minimum height and width in pixels of an input that is treated as an image and shifted."""
_MIXED = 0.5
"""Fraction of the inputs that are mixed with another one."""
_BETWEEN = 8.0
"""Weight of the layers' loss, relative to their variance, against the loss of the outputs."""
_SHIFT = 8
"""Divisor of height and width that gives the maximum shift of an image."""


def distill(
    student: GraphModule,
    teacher: GraphModule,
    rows: Sequence[Row],
    masks: Mapping[str, Tensor],
    layers: Collection[str] = (),
    states: int = 0,
    *,
    course: SparsityOptions,
    progress: Callable[[float], None] = lambda done: None,
) -> None:
    """Train a network in place.

    Args:
        masks: weights to keep, by tensor name.
        states: number of trailing outputs that are states.
    """
    steps = course.steps
    parameters = {n: p for n, p in student.named_parameters() if p.requires_grad and p.is_floating_point()}
    sizes = [max(float(p.detach().square().mean().sqrt()), 1e-3) for p in parameters.values()]
    groups = [{"params": [p], "lr": course.rate * size} for p, size in zip(parameters.values(), sizes, strict=True)]
    optimizer = torch.optim.Adam(groups)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator().manual_seed(course.seed)
    together = takes_any_batch(student)
    learning, teaching = with_intermediates(student, layers), with_intermediates(teacher, layers)
    for step in range(steps):
        chosen = [rows[i] for i in torch.randint(0, len(rows), (course.batch,), generator=generator)]
        inputs = [varied(joined(chosen), generator)] if together else chosen
        optimizer.zero_grad()
        for x in inputs:
            with torch.no_grad():
                wanted, wanted_between = teaching(*x)
            found, between = learning(*x)
            loss = difference(floats(found), floats(wanted), x, states)
            for y, target in zip(between, wanted_between, strict=True):
                loss = loss + _BETWEEN * relative_error(y, target)
            if not torch.isfinite(loss):
                raise ModelError(
                    f"The network computes NaN or infinity in step {step + 1} of the training without labels.",
                    hint="a smaller `rate`, or steps=0 for none",
                )
            (loss / len(inputs)).backward()
        torch.nn.utils.clip_grad_norm_(list(parameters.values()), 10.0)
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            for name, mask in masks.items():
                parameters[name].mul_(mask)
        progress((step + 1) / steps)


def with_intermediates(model: GraphModule, nodes: Collection[str]) -> GraphModule:
    """Return the network, sharing its weights, with the outputs of some nodes as an additional result."""
    graph = copy.deepcopy(model.graph)
    graph.set_codegen(CodeGen())  # separate inputs, and no nested results
    output = graph.output_node()
    output.args = ((output.args[0], tuple(n for n in graph.nodes if n.name in nodes)),)
    return GraphModule(model, graph)


def difference(found: Sequence[Tensor], wanted: Sequence[Tensor], row: Row, states: int = 0) -> Tensor:
    """Loss between outputs and targets: KL divergence for class scores, otherwise relative squared error.

    Args:
        row: inputs of the network.
        states: number of trailing outputs that are states, which are never scores.
    """
    total = torch.zeros((), dtype=torch.float64)
    for number, (y, target) in enumerate(zip(found, wanted, strict=True)):
        if is_scores(target, row) and number < len(wanted) - states:
            total = total + _TEMPERATURE**2 * F.kl_div(
                F.log_softmax(y / _TEMPERATURE, 1), F.softmax(target / _TEMPERATURE, 1), reduction="batchmean"
            )
        else:
            total = total + relative_error(y, target)
    return total


def is_scores(y: Tensor, row: Row) -> bool:
    """True if a result [N, K] is considered to be scores of K classes, and not a reconstruction of an input.

    Args:
        row: inputs of the network; their batch size may differ.
    """
    again = any(y.shape[1:] == x.shape[1:] for x in row)
    return y.dim() == 2 and 2 <= y.shape[1] <= 20_000 and not again


def relative_error(y: Tensor, wanted: Tensor) -> Tensor:
    """Mean squared difference divided by the variance of the target."""
    return F.mse_loss(y, wanted) / wanted.var(correction=0).clamp(min=1e-12)


def varied(batch: Row, generator: torch.Generator) -> Row:
    """Augment the inputs of a step: shift images, mirror half of them, and mix half of all with another one."""
    count = len(batch[0])
    other = torch.randperm(count, generator=generator)
    share = torch.rand(count, generator=generator).clamp(min=0.5)
    share[torch.rand(count, generator=generator) > _MIXED] = 1.0
    found = []
    for x in batch:
        if x.is_floating_point():
            x = _moved(x, generator) if x.dim() == 4 and min(x.shape[2:]) >= _LEAST_PICTURE else x
            part = share.reshape(-1, *[1] * (x.dim() - 1))
            x = part * x + (1 - part) * x[other]
        found.append(x)
    return tuple(found)


def _moved(x: Tensor, generator: torch.Generator) -> Tensor:
    """Shift each image by its own offset, repeating the border, and mirror half of them."""
    high, wide = x.shape[2:]
    most = (high // _SHIFT, wide // _SHIFT)
    padded = F.pad(x, (most[1], most[1], most[0], most[0]), mode="replicate")
    found = []
    for picture in padded:
        down, right = (int(torch.randint(0, 2 * m + 1, (), generator=generator)) for m in most)
        cut = picture[:, down : down + high, right : right + wide]
        found.append(cut.flip(-1) if torch.rand((), generator=generator) < 0.5 else cut)
    return torch.stack(found)
