"""Which corrections of quantization a sparse network is judged and handed out with."""

from __future__ import annotations

import torch
from tests.compile.small import Small, conv, linear
from torch import Tensor, nn

from micronpu import SparsityOptions
from micronpu.frontend.exported import exported
from micronpu.quantize.config import Corrections
from micronpu.targets.registry import device_for
from micronpu.transforms.sparsity.entry import Transforms
from micronpu.transforms.sparsity.judge import TRIED, Judge, nearest, with_corrections
from micronpu.transforms.sparsity.layers import FloatNetwork

U85 = "ethos-u85-256"
FITTED = Corrections(fit_ranges=True, bias_correction=True)


def network() -> nn.Module:
    """Hardly uses its first input channel, which has the largest values: ranges by tensor waste most of the steps.

    Every other two input channels of a layer matter little, so that 2:4 costs next to nothing.
    """
    torch.manual_seed(0)
    model = Small(
        lambda m, x: m.fc(m.second(m.first(x).relu()).relu().mean((2, 3))),
        first=conv(8, 32, 3),
        second=conv(32, 64, 3, stride=2),
        fc=linear(64, 12),
    )
    with torch.no_grad():
        for layer in (model.first, model.second, model.fc):
            layer.weight[:, torch.arange(layer.weight.shape[1]) % 4 > 1] *= 1e-3
        model.first.weight[:, 0] *= 1e-3
    return model


def inputs() -> list[tuple[Tensor, ...]]:
    x = torch.randn(30, 8, 8, 8, generator=torch.Generator().manual_seed(0))
    x[:, 0] *= 40
    return [(row,) for row in x.split(1)]


def test_the_corrections_that_bring_it_nearest_are_chosen() -> None:
    device, rows = device_for(U85), inputs()
    given = exported(network(), rows[0])
    float_network = FloatNetwork.of(given.module, rows[0], [[row] for row in rows])
    model, kept, seen = float_network.model, rows[:10], rows[10:]
    judge, quantizer = Judge(model, kept), device.quantizer()
    plain = nearest(model, seen, quantizer, judge, False)
    made = nearest(model, seen, quantizer, judge, True)
    assert plain.corrections == () and made.corrections == TRIED
    assert made.judgement == judge.judged(made.network)
    assert made.judgement.distance < 0.5 * plain.judgement.distance
    assert judge.harm(made.network) < 0.5 * judge.harm(plain.network)
    # A score of the user's own decides where there is one; without a gain there are no corrections.
    assert nearest(model, seen, quantizer, Judge(model, kept, lambda m: 1.0), True).corrections == ()
    assert nearest(model, seen, device.quantizer().set_corrections(FITTED), judge, True).corrections == ()
    assert with_corrections(quantizer, TRIED).settings.corrections == Corrections(**dict.fromkeys(TRIED, True))
    assert quantizer.settings.corrections == Corrections()


def test_compile_quantizes_as_the_points_were() -> None:
    device, rows = device_for(U85), inputs()
    sparse = Transforms(sparsity=SparsityOptions(steps=0, points=1))
    assert sparse.reduces and not Transforms().reduces
    given, sequences = exported(network(), rows[0]), [[row] for row in rows]
    found = sparse.reduced(device, given, sequences, device.quantizer(), lambda part: None)
    assert found.report is not None and found.report.point.corrections == TRIED
    assert found.quantizer.settings.corrections == FITTED
    assert found.report.summary().endswith("quantized with fit_ranges, bias_correction.")
    # Training finds ranges and biases itself.
    again = exported(network(), rows[0])
    trained = sparse.reduced(device, again, sequences, device.quantizer(is_qat=True), lambda part: None)
    assert trained.quantizer.settings.corrections == Corrections()
