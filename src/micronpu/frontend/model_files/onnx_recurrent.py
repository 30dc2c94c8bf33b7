"""Lowerings of ONNX's recurrent layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from micronpu.frontend.model_files.budget import Cost
from micronpu.frontend.model_files.onnx_nodes import DAMAGED, OnnxNode, lowering


@lowering("LSTM", "GRU", "RNN")
def _recurrent(node: OnnxNode) -> None:
    w, r, b = node.required(1), node.required(2), node.constant(3)
    hidden, directions = r.shape[2], w.shape[0]
    if node.attribute("hidden_size") not in (None, hidden):
        raise node.error(f"has weights for {hidden} values of a state, and states another number", DAMAGED)
    first_h, first_c = 5, 6
    usual = {"LSTM": ["sigmoid", "tanh", "tanh"], "GRU": ["sigmoid", "tanh"], "RNN": ["tanh"]}[node.kind]
    given = [name.lower() for name in node.attribute("activations") or usual * directions][: len(usual) * directions]
    if given != usual * directions or node.attribute("clip") or node.has(7):
        raise node.error(
            "has peepholes, a clip, or other activations than PyTorch's layer",
            "the recurrent layer as PyTorch computes it",
        )
    direction = node.attribute("direction")
    if len(node.meta(0).shape) != 3 or directions != 1 + (direction == "bidirectional"):
        raise node.error(f"is {direction}, and has weights for {directions} directions", DAMAGED)
    lengths = node.constant(4)
    if lengths is not None and bool((lengths != node.meta(0).shape[0]).any()):
        raise node.error("has sequences of unequal lengths", "whole sequences")
    initial = [node.operand(i) for i in (first_h, first_c) if node.has(i)]
    steps, batch = node.meta(0).shape[:2]
    node.builder.budget.spend(Cost.OPERATORS, steps * directions, str(node))
    if node.kind == "GRU" and not node.flag("linear_before_reset"):
        if steps > MOST_STEPS:
            raise node.error(
                f"resets before the matrix product, in {steps} steps; at most {MOST_STEPS} are written out",
                "linear_before_reset=1, as PyTorch exports it",
            )
        layer: nn.Module = _ResetBefore(w, r, b)
    else:
        layer = _layer(node.kind, w, r, b, direction == "bidirectional")
    turned = [0] if direction == "reverse" else []

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: torch.Tensor, *states: torch.Tensor) -> tuple[torch.Tensor, ...]:
            given: object = (states[0] if len(states) == 1 else tuple(states)) if states else None
            y, last = self.layer(torch.flip(x, turned) if turned else x, given)
            y = torch.flip(y, turned) if turned else y
            whole = y.reshape(steps, batch, directions, hidden).permute(0, 2, 1, 3)
            return (whole, *(last if isinstance(last, tuple) else (last,)))[: len(node.outputs)]

    node.emit(Recurrent().eval(), [node.operand(0), *initial])


MOST_STEPS = 64
"""Maximum number of steps of a recurrent layer that PyTorch does not have, which is unrolled."""


class _ResetBefore(nn.Module):
    """A GRU that resets its state before the matrix product, with the operands and results of `nn.GRU`.

    z, r = sigmoid(Wx + Rh + b); n = tanh(Wx + R(r * h) + b); h = (1 - z) * n + z * h
    """

    def __init__(self, w: torch.Tensor, r: torch.Tensor, b: torch.Tensor | None) -> None:
        super().__init__()
        self.directions, gates, self.hidden = r.shape
        first, second = torch.zeros(2, self.directions, gates) if b is None else b.chunk(2, 1)
        values = {"w": w, "gates": r[:, : -self.hidden], "new": r[:, -self.hidden :], "bias": first + second}
        for name, value in values.items():
            for d in range(self.directions):
                self.register_buffer(f"{name}{d}", value[d])

    def forward(self, x: torch.Tensor, state: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        results, states = [], []
        for d in range(self.directions):
            w, gates, new, bias = (getattr(self, f"{name}{d}") for name in ("w", "gates", "new", "bias"))
            given = functional.linear(torch.flip(x, [0]) if d else x, w, bias)
            h = x.new_zeros(x.shape[1], self.hidden) if state is None else state[d]
            made = []
            for t in range(x.shape[0]):
                zr, n = given[t].split([2 * self.hidden, self.hidden], -1)
                z, r = torch.sigmoid(zr + functional.linear(h, gates)).chunk(2, -1)
                n = torch.tanh(n + functional.linear(r * h, new))
                h = n + z * (h - n)
                made.append(h)
            results.append(torch.stack(made[::-1] if d else made))
            states.append(h)
        return torch.cat(results, -1), torch.stack(states)


_GATES = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}
"""PyTorch's gates by their index in ONNX: i, f, g, o of i, o, f, c; r, z, n of z, r, h."""


def _layer(kind: str, w: torch.Tensor, r: torch.Tensor, b: torch.Tensor | None, both: bool) -> nn.RNNBase:
    make: Any = {"LSTM": nn.LSTM, "GRU": nn.GRU, "RNN": nn.RNN}[kind]
    hidden = r.shape[2]
    layer: nn.RNNBase = make(w.shape[2], hidden, bias=b is not None, bidirectional=both)

    def ordered(value: torch.Tensor) -> torch.Tensor:
        return torch.cat([value[g * hidden : (g + 1) * hidden] for g in _GATES[kind]])

    with torch.no_grad():
        for d in range(w.shape[0]):
            end = "_reverse" if d else ""
            getattr(layer, f"weight_ih_l0{end}").copy_(ordered(w[d]))
            getattr(layer, f"weight_hh_l0{end}").copy_(ordered(r[d]))
            if b is not None:
                for name, part in zip(("bias_ih", "bias_hh"), b[d].chunk(2), strict=True):
                    getattr(layer, f"{name}_l0{end}").copy_(ordered(part))
    for parameter in layer.parameters():
        parameter.requires_grad_(False)
    return layer
