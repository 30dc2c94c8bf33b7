"""Training without labels: the sparse network learns to answer as the dense one does, on the calibration inputs.

The inputs are varied, since there are few of them: pictures are shifted and mirrored, and pairs are mixed.  What the
dense network makes of the varied input is right by definition, and so is what its layers give on the way: a few inputs
say more about a network by all its layers than by its answers alone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.graph import CodeGen

from micronpu.base.errors import ModelError
from micronpu.transforms.sparsity.network import Row, floats, joined, takes_any_batch

_TEMPERATURE = 2.0
_LEAST_PICTURE = 12
"""Pixels of height and width from which on an input is a picture that can be shifted."""
_MIXED = 0.5
"""Part of the inputs that are mixed with another one."""
_BETWEEN = 8.0
"""Weight of what layers give, as a part of their variance, beside that of the results."""
_SHIFT = 8
"""Part of the height and width that a picture is shifted by at most."""


@dataclass(frozen=True)
class Course:
    """How long and how fast is learnt.

    Attributes:
        steps: changes of the weights.
        rate: of learning, as a part of the mean size of a tensor's values.
        batch: rows of a step.
        seed: of the choice of rows.
    """

    steps: int
    rate: float
    batch: int
    seed: int


def distill(
    student: GraphModule,
    teacher: GraphModule,
    rows: Sequence[Row],
    masks: Mapping[str, Tensor],
    layers: Collection[str] = (),
    states: int = 0,
    *,
    course: Course,
    progress: Callable[[float], None] = lambda done: None,
) -> None:
    """Trains a network in place.

    Args:
        masks: which weights stay, by the tensor's name.
        layers: names of nodes whose results are learnt as well.
        states: how many of the last results are states.
    """
    steps = course.steps
    parameters = {n: p for n, p in student.named_parameters() if p.requires_grad and p.is_floating_point()}
    groups = [{"params": [p], "lr": course.rate * _size(p)} for p in parameters.values()]
    optimizer = torch.optim.Adam(groups)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator().manual_seed(course.seed)
    together = takes_any_batch(student)
    learning, teaching = telling(student, layers), telling(teacher, layers)
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
                    f"In step {step + 1} of the training without labels the network computes NaN or infinity.",
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


def telling(model: GraphModule, nodes: Collection[str]) -> GraphModule:
    """The same network, its weights among it, whose result is a pair: the result, and what some nodes give."""
    graph = copy.deepcopy(model.graph)
    graph.set_codegen(CodeGen())  # inputs one by one, and no tree of results
    (output,) = (n for n in graph.nodes if n.op == "output")
    output.args = ((output.args[0], tuple(n for n in graph.nodes if n.name in nodes)),)
    return GraphModule(model, graph)


def difference(found: Sequence[Tensor], wanted: Sequence[Tensor], row: Row, states: int = 0) -> Tensor:
    """How far results are from those that are wanted; of scores of classes, in what they say about the classes.

    Args:
        row: inputs of the network.
        states: how many of the last results are states, which are no scores whatever their shape.
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
    """Whether a result [N, K] is taken for one score for each of K classes: that of an autoencoder is an input again.

    Args:
        row: inputs of the network, of which there may be another number.
    """
    again = any(y.shape[1:] == x.shape[1:] for x in row)
    return y.dim() == 2 and 2 <= y.shape[1] <= 20_000 and not again


def relative_error(y: Tensor, wanted: Tensor) -> Tensor:
    """Mean square of the difference as a part of the variance of what is wanted."""
    return F.mse_loss(y, wanted) / wanted.var(correction=0).clamp(min=1e-12)


def _size(parameter: Tensor) -> float:
    return max(float(parameter.detach().square().mean().sqrt()), 1e-3)


def varied(batch: Row, generator: torch.Generator) -> Row:
    """The inputs of a step: pictures shifted and half of them mirrored, and half of all mixed with another one."""
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
    """Pictures shifted, each its own way, with their borders repeated, and half of them mirrored."""
    high, wide = x.shape[2:]
    most = (high // _SHIFT, wide // _SHIFT)
    padded = F.pad(x, (most[1], most[1], most[0], most[0]), mode="replicate")
    found = []
    for picture in padded:
        down, right = (int(torch.randint(0, 2 * m + 1, (), generator=generator)) for m in most)
        cut = picture[:, down : down + high, right : right + wide]
        found.append(cut.flip(-1) if torch.rand((), generator=generator) < 0.5 else cut)
    return torch.stack(found)
