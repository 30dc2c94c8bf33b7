"""Lowerings of LiteRT's recurrent operators, whose states persist from one call to the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from micronpu.frontend.model_files.budget import Cost
from micronpu.frontend.model_files.litert import FileOperator, LiteRtBuilder, activation_of
from micronpu.frontend.model_files.litert_operators import lowering
from micronpu.frontend.model_files.network import Operand, tensor

_NONLINEAR = {1: "relu", 4: "tanh"}
"""Names in PyTorch of LiteRT's fused activations."""


class _Layer(nn.Module):
    """A recurrent layer of PyTorch, with its states as further operands and results, without the axis of layers."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor, *states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = tuple(state.unsqueeze(0) for state in states)
        made, after = self.layer(x, given if len(given) > 1 else given[0])
        return made, *(state.squeeze(0) for state in (after if isinstance(after, tuple) else (after,)))


def _floats(build: LiteRtBuilder, operator: FileOperator, numbers: Sequence[int]) -> list[torch.Tensor]:
    values = [build.real_constant(operator.operand(i)) for i in numbers]
    if any(value is None for value in values):
        raise operator.error("has weights that are computed at run time", "a model with constant weights")
    return [tensor(value) for value in values if value is not None]


def _check(operator: FileOperator, unread: Sequence[int], what: str) -> None:
    """Refuse integers, and operands that are not read."""
    if operator.outputs[0].rounding is not None:
        raise operator.error("computes in integers", "the float file, which micronpu quantizes")
    if any(operator.has(i) for i in unread):
        raise operator.error(f"has {what}", "the model in PyTorch")


def _append(build: LiteRtBuilder, operator: FileOperator, layer: _Layer, states: Sequence[int]) -> None:
    """Append an operator whose results are its output and the new values of its states, which begin with 0."""
    steps = operator.operand(0).shape[1 if layer.layer.batch_first else 0]
    build.budget.spend(Cost.OPERATORS, steps, str(operator))
    made, kept = operator.outputs[0], []
    for i in states:
        given = operator.operand(i)
        kept.append(build.state(given.name, torch.zeros(given.shape)))
    operands: list[Operand] = [build.read(operator, 0), *(state.number for state in kept)]
    number, *after = build.add(made.name, layer, operands, [None] * (1 + len(kept)))
    build.define(made, number, None, operator=operator)
    for state, new in zip(kept, after, strict=True):
        state.written = new


@lowering("UNIDIRECTIONAL_SEQUENCE_LSTM")
def _lstm(build: LiteRtBuilder, operator: FileOperator) -> None:
    _check(operator, (9, 10, 11, 16, 17, 20, 21, 22, 23), "peepholes, a projection or a norm")
    if not operator.has(1) or operator.option("cellClip", 0.0) or operator.option("diagonalRecurrentTensors", False):
        raise operator.error("couples its gates, or clips its cell", "the model in PyTorch")
    if operator.option("fusedActivationFunction", 0) != 4:
        raise operator.error("has another activation than tanh", "the model in PyTorch")
    order = (0, 1, 2, 3)  # input, forget, cell, output: PyTorch's order, too
    parts = [_floats(build, operator, [first + i for i in order]) for first in (1, 5, 12)]
    given, recurrent, bias = (torch.cat(part) for part in parts)
    layer = nn.LSTM(given.shape[1], recurrent.shape[1], batch_first=not operator.option("timeMajor", False))
    _append(build, operator, _Layer(_with(layer, given, recurrent, bias)), (18, 19))


@lowering("UNIDIRECTIONAL_SEQUENCE_RNN")
def _rnn(build: LiteRtBuilder, operator: FileOperator) -> None:
    _check(operator, (), "")
    given, recurrent, bias = _floats(build, operator, (1, 2, 3))
    nonlinear = _NONLINEAR.get(operator.option("fusedActivationFunction", 0))
    if nonlinear is None:
        raise operator.error("has another activation than relu or tanh", "the model in PyTorch")
    whole = not operator.option("timeMajor", False)
    layer = nn.RNN(given.shape[1], recurrent.shape[1], nonlinearity=nonlinear, batch_first=whole)
    _append(build, operator, _Layer(_with(layer, given, recurrent, bias)), (4,))


def _with(layer: Any, given: torch.Tensor, recurrent: torch.Tensor, bias: torch.Tensor) -> nn.RNNBase:
    """Return the layer with weights of a file."""
    made: nn.RNNBase = layer.eval()
    zeros = torch.zeros_like(bias)
    made.load_state_dict({"weight_ih_l0": given, "weight_hh_l0": recurrent, "bias_ih_l0": bias, "bias_hh_l0": zeros})
    return made.requires_grad_(False)


@lowering("SVDF")
def _svdf(build: LiteRtBuilder, operator: FileOperator) -> None:
    """Append the weighted sums over the last steps of each feature, added for the features of each unit."""
    made, last = operator.outputs[0], operator.operand(4)
    rank, fused = int(operator.option("rank", 1)), activation_of(operator)
    (filters, steps), units = operator.operand(2).shape, operator.operand(2).shape[0] // rank
    bias = build.read(operator, 3) if operator.has(3) else torch.zeros(units)

    def weighted(kept: torch.Tensor, t: torch.Tensor, b: torch.Tensor) -> object:
        sums = (kept.reshape(-1, filters, steps) * t).sum(-1).reshape(-1, units, rank).sum(-1) + b
        return sums if fused is None else fused(sums)

    def moved(kept: torch.Tensor, new: torch.Tensor) -> Any:
        return torch.cat([kept.reshape(-1, filters, steps)[:, :, 1:], new.unsqueeze(-1)], -1).reshape(last.shape)

    state = build.state(last.name, torch.zeros(last.shape))
    features = [build.read(operator, 0), build.read(operator, 1)]
    (new,) = build.add(f"{made.name}_features", nn.functional.linear, features, [last.rounding])
    (state.written,) = build.add(last.name, moved, [build.written(state, last), new], [last.rounding])
    (number,) = build.add(made.name, weighted, [state.written, build.read(operator, 2), bias], [made.rounding])
    build.define(made, number, made.rounding, operator=operator)
