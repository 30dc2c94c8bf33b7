"""Recurrent layers written out step by step: all on the NPU, close to the float module."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.compile.small import against_float
from torch import Tensor, nn

import micronpu.ops.recurrent as recurrent
from micronpu.frontend.program import overload_name
from micronpu.ir.way import Capabilities
from micronpu.quantize.compose import compose

STEPS, BATCH, INPUTS, HIDDEN = 6, 2, 12, 8


class Layers(nn.Module):
    """Every kind, with and without what may vary; an initial state from outside where `y` is used."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.gru = nn.GRU(INPUTS, HIDDEN)
        self.deep = nn.GRU(INPUTS, HIDDEN, num_layers=2, bidirectional=True, batch_first=True)
        self.lstm = nn.LSTM(INPUTS, HIDDEN, batch_first=True)
        self.both = nn.LSTM(INPUTS, HIDDEN, bidirectional=True, bias=False)
        self.simple = nn.RNN(INPUTS, HIDDEN)
        self.rectified = nn.RNN(INPUTS, HIDDEN, nonlinearity="relu")

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        rows = x.transpose(0, 1)
        return (
            self.gru(x)[0],
            self.gru(x, y)[1],
            *self.deep(rows),
            self.lstm(rows)[0],
            *self.lstm(rows, (y, y * 0.5))[1],
            self.both(x)[0],
            self.simple(x, y)[0],
            self.rectified(x)[0][-1],
        )


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    random = torch.Generator().manual_seed(6)
    shapes = ((STEPS, BATCH, INPUTS), (1, BATCH, HIDDEN))
    return [(torch.randn(shapes[0], generator=random), torch.randn(shapes[1], generator=random)) for _ in range(count)]


def names(module: Any) -> set[str]:
    return {overload_name(n).split(".")[0] for n in module.graph.nodes}


def test_steps_keep_the_float_result():
    x, y = batches(1)[0]
    model = Layers().eval()
    module: Any = torch.export.export(model, (x, y)).module(check_guards=False)
    assert names(module) >= {"gru", "lstm", "rnn_tanh", "rnn_relu"}
    assert compose(module, Capabilities())
    assert not names(module) & {"gru", "lstm", "rnn_tanh", "rnn_relu"}
    with torch.no_grad():
        for new, old in zip(module(x, y), model(x, y), strict=True):
            assert new.shape == old.shape
            torch.testing.assert_close(new, old, rtol=1e-5, atol=1e-5)


def test_program_is_close_to_float():
    data = batches(12)
    model = Layers().eval()
    assert min(against_float(model, data)) >= 25


def test_long_sequences_are_left_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recurrent, "MAX_STEPS", 4)

    class Long(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.GRU(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.layer(x)[0]
            return result

    for steps, left in ((4, False), (5, True)):
        module: Any = torch.export.export(Long().eval(), (torch.zeros(steps, 1, 2),)).module(check_guards=False)
        compose(module, Capabilities())
        assert ("gru" in names(module)) is left
