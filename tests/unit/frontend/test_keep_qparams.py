"""Movements beside quantized values keep the qparams, and no result changes."""

from __future__ import annotations

from collections import Counter

import torch
from torch.nn import functional

from micronpu.frontend.export import export
from micronpu.frontend.exported import graph_module
from micronpu.frontend.integers import keep_qparams
from micronpu.frontend.program import is_dequantize, is_quantize
from micronpu.upstream.torch import register_quantized_operators

register_quantized_operators()
quantized = torch.ops.quantized_decomposed


def rounded(x: torch.Tensor, scale: float, zero: int = 0) -> torch.Tensor:
    given = (scale, zero, -128, 127, torch.int8)
    return quantized.dequantize_per_tensor(quantized.quantize_per_tensor(x, *given), *given)


class Both(torch.nn.Module):
    """Movements before and behind operators that compute; a sum in float, and a movement that only it reads."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x = rounded(x, 0.05, 3)
        convolved = functional.conv2d(functional.pad(x.permute(0, 2, 1, 3), (0, 1, 0, 1)), torch.ones(2, 4, 2, 2))
        before = rounded(convolved.relu(), 0.2)
        behind = rounded(x.sigmoid().permute(0, 2, 3, 1).reshape(1, -1), 0.01)
        joined = rounded(torch.cat([x.flatten(1), behind], 1), 0.03)
        return before, joined, x.reshape(4, -1).sum()


def test_movements_are_quantized_where_it_changes_nothing():
    x = torch.randn(1, 3, 4, 5, generator=torch.Generator().manual_seed(0)) * 3
    module = graph_module(export(Both().eval(), (x,)))
    expected, count = module(x), len(list(filter(is_quantize, module.graph.nodes)))
    keep_qparams(module)
    for wanted, got in zip(expected, module(x), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)
    made = [node.args[0].target for node in filter(is_quantize, module.graph.nodes)]
    aten = torch.ops.aten
    assert len(made) == count + 6
    assert Counter(made)[aten.pad.default] == Counter(made)[aten.sigmoid.default] == 1
    (alone,) = (node for node in module.graph.nodes if node.target is aten.sum.default)
    assert not is_dequantize(alone.args[0])


class TwoInputs(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return rounded(x.permute(1, 0), 0.05) + rounded(y, 0.05)


def test_inputs_stay_first():
    inputs = torch.randn(3, 4), torch.randn(4, 3)
    module = graph_module(export(TwoInputs().eval(), inputs))
    expected = module(*inputs)
    keep_qparams(module)
    assert [node.op == "placeholder" for node in module.graph.nodes][:3] == [True, True, False]
    torch.testing.assert_close(module(*inputs), expected, rtol=0, atol=0)
