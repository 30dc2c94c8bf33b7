"""Export of recurrent layers: their shapes are known without a step, and other threads are left alone."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from micronpu.frontend.export import _RecurrencesByShape, export
from micronpu.frontend.program import overload_name

LAYERS = {
    "gru": lambda **options: nn.GRU(3, 5, **options),
    "lstm": lambda **options: nn.LSTM(3, 5, **options),
    "rnn_tanh": lambda **options: nn.RNN(3, 5, **options),
    "rnn_relu": lambda **options: nn.RNN(3, 5, nonlinearity="relu", **options),
}


class Count(TorchDispatchMode):
    """Counts the operators that torch computes, with shapes or with values."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen[str(func)] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.sweep
@pytest.mark.parametrize("options", [{}, {"batch_first": True}, {"bidirectional": True, "num_layers": 2}], ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_the_graph_has_one_node_and_the_layers_shapes(name, options):
    layer, x = LAYERS[name](**options).eval(), torch.randn(7, 2, 3)
    program = export(layer, (x,))
    (node,) = (n for n in program.graph.nodes if overload_name(n) == f"{name}.input")
    plain = torch.export.export(layer, (x,))
    (wanted,) = (n for n in plain.graph.nodes if overload_name(n) == f"{name}.input")
    assert node.name == wanted.name and str(program.graph) == str(plain.graph)
    for found, value in zip(node.meta["val"], wanted.meta["val"], strict=True):
        assert (found.shape, found.stride(), found.dtype) == (value.shape, value.stride(), value.dtype)
    with torch.no_grad():
        for found, value in zip(program.module()(x)[0], layer(x)[0], strict=True):
            assert torch.equal(found, value)


def test_steps_are_not_computed():
    """The number of operators that the export looks at does not grow with the length of the sequence."""
    counts = []
    for steps in (10, 500):
        with Count() as count:
            export(nn.GRU(3, 5).eval(), (torch.randn(steps, 1, 3),))
        counts.append(sum(count.seen.values()))
    assert counts[0] == counts[1]


def test_a_packed_sequence_is_left_to_torch():
    layer = nn.GRU(3, 5).eval()
    packed = nn.utils.rnn.pack_sequence([torch.randn(3, 3), torch.randn(2, 3)])
    with torch.no_grad():
        wanted = layer(packed)[0].data
        with _RecurrencesByShape():
            assert torch.equal(layer(packed)[0].data, wanted)


def test_another_thread_computes_meanwhile():
    """What one thread exports changes nothing about a layer that another one runs under a mode of its own."""
    layer, x = nn.LSTM(3, 5).eval(), torch.randn(7, 1, 3)
    with torch.no_grad():
        wanted = layer(x)[0]
    begun, done, found = threading.Event(), threading.Event(), []

    class Slow(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.LSTM(3, 5)

        def forward(self, x):
            begun.set()
            assert done.wait(60)
            return self.layer(x)[0]

    def run():
        try:
            assert begun.wait(60)
            with torch.no_grad(), Count():
                found.append(layer(x)[0])
        finally:
            done.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        export(Slow().eval(), (x,))
    finally:
        begun.set()
        thread.join(60)
    assert torch.allclose(found[0], wanted, atol=1e-6)
