"""Quantized weights that somebody else's program transposes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.fx import Graph, GraphModule

from micronpu.frontend.importer import Importer
from micronpu.frontend.program import ProgramView, calls_into
from micronpu.upstream.torch import register_quantized_operators


@pytest.mark.parametrize(
    ("overload", "args"),
    [("t.default", ()), ("permute.default", ([-1, 0],)), ("transpose.int", (0, -1)), ("transpose_copy.int", (1, 0))],
)
def test_weights_behind_a_transpose(overload: str, args: tuple[Any, ...]) -> None:
    register_quantized_operators()
    integers = torch.arange(-3, 3, dtype=torch.int8).reshape(2, 3)
    root = torch.nn.Module()
    root.register_buffer("weight", integers)
    root.register_buffer("scales", torch.tensor([0.5, 0.25]))
    root.register_buffer("zeros", torch.zeros(2, dtype=torch.int64))
    graph = Graph()
    given = [graph.get_attr(name) for name in ("weight", "scales", "zeros")]
    dequantize = torch.ops.quantized_decomposed.dequantize_per_channel.default
    floats = graph.call_function(dequantize, (*given, 0, -128, 127, torch.int8))
    reader = calls_into(graph)(overload, floats, *args)
    graph.output(reader)
    data, qparams = Importer(ProgramView(GraphModule(root, graph))).weight(reader, reader)
    assert np.array_equal(data, integers.numpy().T) and qparams.scale == (0.5, 0.25) and qparams.axis == 1
