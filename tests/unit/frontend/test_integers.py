"""Inputs and outputs that become integers."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.fx import Graph, GraphModule

from micronpu.frontend.integers import to_integer_io
from micronpu.frontend.program import Edge, add_dequantize, add_quantize
from micronpu.upstream.torch import register_quantized_operators

QPARAMS = Edge(0.1, 3, -128, 127, torch.int8)
X = torch.tensor([[-20.0, -0.3, 0.04, 0.06, 7.0, 20.0]])


def quantized(*, returns_integers: bool) -> GraphModule:
    """x -> quantize -> (dequantize) -> output, without example values behind the quantize, as of `convert_pt2e`."""
    register_quantized_operators()
    graph = Graph()
    x = graph.placeholder("x")
    x.meta["val"] = X
    integers = add_quantize(x, QPARAMS)
    graph.output((integers if returns_integers else add_dequantize(integers, QPARAMS),))
    return GraphModule(nn.Module(), graph)


def test_integers_that_a_module_returns_are_no_dequantized_output():
    module = quantized(returns_integers=True)
    meaning = to_integer_io(module)
    assert meaning.outputs == (None,)
    integers = meaning.inputs[0].quantize(X)
    assert module(integers)[0] is integers


def test_formulas_of_qparams_are_those_of_torchs_operators():
    module = quantized(returns_integers=False)
    (wanted,) = module(X)
    (integers,) = quantized(returns_integers=True)(X)
    meaning = to_integer_io(module)
    assert module(integers)[0] is integers
    torch.testing.assert_close(meaning.inputs[0].quantize(X), integers, rtol=0, atol=0)
    torch.testing.assert_close(meaning.outputs[0].dequantize(integers), wanted, rtol=0, atol=0)
    torch.testing.assert_close(QPARAMS.rounded(X), wanted)
    assert QPARAMS.range == pytest.approx((float(wanted.min()), float(wanted.max())))
    assert QPARAMS.dequantized(X) is X
