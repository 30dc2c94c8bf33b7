"""Layers behind sparse ones are fitted to what they gave before."""

from __future__ import annotations

import copy

import torch
from tests.compile.small import Small, conv, linear
from torch import nn

from micronpu.frontend.exported import exported_for_any_batch
from micronpu.transforms.sparsity.distill import relative_error, with_intermediates
from micronpu.transforms.sparsity.layers import find_layers, tensor_of
from micronpu.transforms.sparsity.second_order import can_be_fitted, refit


def network() -> nn.Module:
    torch.manual_seed(0)
    return Small(
        lambda m, x: m.fc((m.second(m.first(x).relu()) + x).relu().mean((2, 3))) * m.fc.weight.sum(),
        first=conv(8, 16, 3, padding=1),
        second=conv(16, 8, 3, padding=1, bias=False),
        fc=linear(8, 4),
    )


def test_layers_behind_make_up_for_what_is_lost_and_zeros_stay() -> None:
    x = torch.randn(64, 8, 6, 6, generator=torch.Generator().manual_seed(0))
    teacher = exported_for_any_batch(network(), (x[:1],))
    layers, _ = find_layers(teacher)
    first, second, _ = layers
    assert can_be_fitted(teacher, first) and can_be_fitted(teacher, second)
    rows = [(row,) for row in x[:48].split(1)]
    # One layer that becomes sparse, alone and with those behind it.
    alone, student = copy.deepcopy(teacher), copy.deepcopy(teacher)
    refit(alone, teacher, [first], [], [first], rows, damping=0.01)
    heard: list[float] = []
    refit(student, teacher, layers, [], [first], rows, damping=0.01, progress=heard.append)
    assert heard == sorted(heard) and heard[-1] == 1.0
    assert first.is_sparse(student) and not second.is_sparse(student)
    assert torch.equal(tensor_of(alone, first.matrices[0].attribute), tensor_of(student, first.matrices[0].attribute))
    between = {node for layer in layers for node in layer.nodes}
    with torch.no_grad():
        result, wanted = with_intermediates(teacher, between)(x[48:])
        assert torch.equal(result[0], teacher(x[48:])) and len(wanted) == 3
        lost = [[float(relative_error(*p)) for p in zip(with_intermediates(m, between)(x[48:])[1], wanted, strict=True)]
                for m in (alone, student)]  # fmt: skip
    assert lost[0][0] == lost[1][0] > 0.01, "the sparse layer"
    assert lost[1][1] < 0.9 * lost[0][1], "the layer behind it, on rows that it was not fitted to"
    # Where it is sparse already, its zeros are kept, and what is right needs no change.
    again = copy.deepcopy(student)
    refit(again, student, layers, [first], [], rows, damping=0.01)
    before = student.state_dict()
    assert all(torch.equal(value, before[name]) for name, value in again.state_dict().items())
    refit(student, teacher, layers, [first], [second], rows, damping=0.01)
    assert first.is_sparse(student) and second.is_sparse(student)
    mask = tensor_of(again, first.matrices[0].attribute) != 0
    assert not bool((tensor_of(student, first.matrices[0].attribute) != 0)[~mask].any())
