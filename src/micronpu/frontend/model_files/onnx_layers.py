"""Quantization and recurrent layers of ONNX files.

Semantics: https://onnx.ai/onnx/operators/.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from micronpu.frontend.model_files.network import Rounding
from micronpu.frontend.model_files.onnx_builder import OnnxNode
from micronpu.frontend.model_files.onnx_operators import LOWERINGS as LOWERINGS
from micronpu.frontend.model_files.onnx_operators import lowering

# ---------------------------------------------------------------- quantization


@lowering("QuantizeLinear")
def _quantize(node: OnnxNode) -> None:
    # Results remain floats that the integers can represent, so that the following DequantizeLinear is the identity.
    rounding = _rounding(node)
    node.emit(lambda x: x, [node.operand(0)], rounding)
    node.builder.rounded.add(node.outputs[0])


def _rounding(node: OnnxNode) -> Rounding:
    scale, zero = node.constant(1), node.constant(2)
    if scale is None or scale.numel() != 1:
        raise node.error("quantizes an activation with several scales", "per-tensor activations")
    dtype = torch.uint8 if zero is None else zero.dtype
    point = 0 if zero is None else int(zero.reshape(-1)[0])
    if dtype is torch.uint8:  # the same numbers, 128 less
        dtype, point = torch.int8, point - 128
    if dtype not in (torch.int8, torch.int16):
        raise node.error(f"quantizes to {dtype}", "int8, uint8 or int16")
    return Rounding(float(scale), point, dtype)


@lowering("DequantizeLinear")
def _dequantize(node: OnnxNode) -> None:
    if node.inputs[0] in node.builder.rounded:
        node.builder.values[node.outputs[0]] = node.operand(0)
        return
    integers, scale, zero = (node.constant(i) for i in range(3))
    assert integers is not None and scale is not None
    if zero is not None and bool(zero.any()) and integers.dtype is not torch.uint8:
        raise node.error("has weights with a zero point", "symmetric weights")
    if integers.dtype is torch.uint8:
        raise node.error("has weights of uint8", "int8 weights, symmetric")
    number = node.builder.dequantized(
        node.name, integers, scale.reshape(-1).to(torch.float64), node.attributes.get("axis", 1) % integers.dim()
    )
    node.builder.values[node.outputs[0]] = number


# ---------------------------------------------------------------- recurrent layers


@lowering("LSTM", "GRU", "RNN")
def _recurrent(node: OnnxNode) -> None:
    w, r, b = (node.constant(i) for i in (1, 2, 3))
    assert w is not None and r is not None
    hidden, directions = node.attributes["hidden_size"], w.shape[0]
    first_h, first_c = 5, 6
    plain = not ({"clip", "activations", "layout"} & {k for k, v in node.attributes.items() if v}) and not node.has(7)
    if node.attributes.get("activations") and not node.attributes.get("clip"):
        usual = {"LSTM": [b"Sigmoid", b"Tanh", b"Tanh"], "GRU": [b"Sigmoid", b"Tanh"], "RNN": [b"Tanh"]}[node.kind]
        plain = list(node.attributes["activations"]) == usual * directions and not node.has(7)
    direction = node.attributes.get("direction", b"forward").decode()
    if not plain:
        raise node.error(
            "has peepholes, a clip, or other activations than PyTorch's layer",
            "the recurrent layer as PyTorch computes it",
        )
    lengths = node.constant(4)
    if lengths is not None and bool((lengths != node.meta(0).shape[0]).any()):
        raise node.error("has sequences of unequal lengths", "whole sequences")
    initial = [node.operand(i) for i in (first_h, first_c) if node.has(i)]
    steps, batch = node.meta(0).shape[:2]
    if node.kind == "GRU" and not node.attributes.get("linear_before_reset", 0):
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
            given: Any = (states[0] if len(states) == 1 else tuple(states)) if states else None
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
