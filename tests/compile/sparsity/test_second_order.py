"""Second moments and what is done with them, against the plain definitions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.compile.small import Small, conv, linear
from torch import Tensor, nn

from micronpu.frontend.exported import exported_for_any_batch
from micronpu.transforms.sparsity.layers import (
    Moments,
    PrunableLayer,
    batches,
    find_layers,
    kept_weights,
    takes_any_batch,
    tensor_of,
)
from micronpu.transforms.sparsity.second_order import pruned


def moments_of(model: nn.Module, x: Tensor) -> tuple[Any, list[PrunableLayer], Moments]:
    program = exported_for_any_batch(model, (x[:1],))
    layers, _ = find_layers(program)
    rows = [(r,) for r in x.split(1)]
    return program, layers, Moments(program, layers, len(rows)).collect(batches(program, rows))


def test_the_weights_that_stay_make_up_for_those_that_go() -> None:
    """For the zeros that it chooses no other weights are better, up to the grid's rounding: those of least squares."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(200, 16, generator=random) @ torch.randn(16, 16, generator=random)
    w = torch.randn(6, 16, generator=random)
    found = pruned(w, x.T @ x / len(x), [(c, 4) for c in range(0, 16, 4)], damping=1e-6)
    zeros = (found.reshape(6, 4, 4) == 0).sum(-1)
    assert bool((zeros >= 2).all())

    def error(rows: Tensor) -> float:
        return float(((rows - w) @ x.T).square().mean())

    cut = w.clone()
    order = w.reshape(6, 4, 4).abs().argsort(-1)[..., :2]
    cut = cut.reshape(6, 4, 4).scatter(-1, order, 0.0).reshape(6, 16)
    assert error(found) < 0.7 * error(cut)
    best = torch.zeros_like(w)
    for i, row in enumerate(found):
        kept = row != 0
        best[i, kept] = torch.linalg.lstsq(x[:, kept], x @ w[i]).solution
    assert error(best) <= error(found) < 1.25 * error(best)
    step = w.abs().amax(1, keepdim=True) / 127
    assert torch.allclose((found / step).round(), found / step, atol=1e-4), "the weights are on the grid of int8"


def test_groups_at_the_end_of_the_channels_are_smaller() -> None:
    w = torch.arange(1.0, 8.0).repeat(2, 1)
    found = pruned(w, torch.eye(7), [(0, 4), (4, 3)], damping=0.0)
    assert ((found != 0).int().tolist()) == [[0, 0, 1, 1, 0, 1, 1]] * 2


def test_a_column_that_nothing_is_seen_of_does_no_harm() -> None:
    moments = torch.eye(8)
    moments[3, 3] = 0.0
    assert torch.isfinite(pruned(torch.ones(2, 8), moments, [(0, 4), (4, 4)], damping=0.01)).all()


CONVOLUTIONS = {
    "plain": (conv(4, 8, 3), (5, 4, 6, 7)),
    "strided": (nn.Conv2d(4, 8, (3, 2), stride=(2, 1), padding=(0, 1)), (5, 4, 7, 6)),
    "dilated": (conv(3, 8, 3, dilation=2, padding="same"), (5, 3, 8, 8)),
    "groups": (conv(8, 8, 3, groups=2), (5, 8, 4, 4)),
    "one axis": (nn.Conv1d(4, 8, 3, padding=1), (5, 4, 9)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_layers_inputs_times_its_matrix_are_its_results(name: str) -> None:
    """E[x x'] is that of the layer: w E[x x'] w' is the mean square of what it computes without a bias."""
    module, shape = CONVOLUTIONS[name]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    program, (layer,), found = moments_of(Small(lambda m, x: m.layer(x), layer=module), x)
    (matrix,) = layer.matrices
    weight = tensor_of(program, matrix.attribute).detach()
    rows = matrix.rows(weight).double()
    assert torch.equal(matrix.weights(rows.float()), weight)
    computed = Small(lambda m, x: m.layer(x), layer=module)(x) - _bias(module)
    expected = computed.square().mean(dim=(0, *range(2, x.dim()))).sum().double()
    groups = 2 if name == "groups" else 1
    moment = found.mean(matrix.attribute)
    if groups == 1:
        assert torch.allclose((rows @ moment @ rows.T).trace(), expected, rtol=1e-3)
    assert found.samples[matrix.attribute] == groups * computed[:, 0].numel()


def _bias(module: Any) -> Tensor:
    return module.bias.detach().reshape(1, -1, *[1] * (module.weight.dim() - 2))  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn"])
def test_states_of_all_steps_are_seen(kind: str) -> None:
    torch.manual_seed(0)
    make = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}[kind]
    layer = make(4, 8, num_layers=2, bidirectional=True, batch_first=True)
    x = torch.randn(6, 5, 4)
    _, (found,), moments = moments_of(Small(lambda m, x: m.rnn(x)[0], rnn=layer), x)
    names = [m.attribute.rpartition(".")[2] for m in found.matrices]
    assert names[:4] == ["weight_ih_l0", "weight_hh_l0", "weight_ih_l0_reverse", "weight_hh_l0_reverse"]
    with torch.no_grad():
        first = make(4, 8, bidirectional=True, batch_first=True)
        first.load_state_dict({n: p for n, p in layer.state_dict().items() if "_l0" in n})
        y = first(x)[0]
    states = torch.cat([torch.zeros(6, 1, 8), y[:, :-1, :8]], 1).flatten(0, 1)
    back = torch.cat([y[:, 1:, 8:], torch.zeros(6, 1, 8)], 1).flatten(0, 1)
    for attribute, seen in (("hh_l0", states), ("hh_l0_reverse", back), ("ih_l1", y.flatten(0, 1))):
        expected = (seen.T @ seen / len(seen)).double()
        assert torch.allclose(moments.mean(f"rnn.weight_{attribute}"), expected, atol=1e-5), attribute


def test_columns_behind_a_flattened_picture_are_channels_last() -> None:
    torch.manual_seed(0)
    model = Small(lambda m, x: m.fc(m.conv(x).flatten(1)), conv=conv(4, 8, 3), fc=linear(8 * 9, 4))
    program = exported_for_any_batch(model, (torch.randn(1, 4, 3, 3),))
    fc = find_layers(program)[0][1].matrices[0]
    assert fc.channels == 8 and fc.order is not None
    weight = tensor_of(program, fc.attribute)
    last = weight.reshape(4, 8, 9).movedim(1, 2).reshape(4, 72)
    assert torch.equal(fc.rows(weight), last) and torch.equal(fc.weights(last), weight)
    mask = kept_weights(fc, weight)
    assert torch.equal(fc.rows(mask).reshape(4, 18, 4).sum(-1), torch.full((4, 18), 2))


def test_a_model_of_a_fixed_batch_is_run_row_by_row() -> None:
    model = Small(lambda m, x: m.fc(x.reshape(1, 8)), fc=linear())
    program = exported_for_any_batch(model, (torch.randn(1, 2, 4),))
    assert not takes_any_batch(program)
    assert [b[0].shape[0] for b in batches(program, [(torch.randn(1, 2, 4),)] * 3)] == [1, 1, 1]
