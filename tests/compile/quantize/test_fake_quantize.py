"""Fake quantization of training: that of torch in results, gradients and switches, with fewer conversions."""

from __future__ import annotations

import pytest
import torch
from torchao.quantization import pt2e as torchao

from micronpu.quantize.pt2e import FakeQuantize, fake_quantized


@pytest.mark.parametrize("low, high", [(-128, 127), (-127, 127), (-32768, 32767)], ids=str)
@pytest.mark.parametrize("scale, zero", [(0.0273, 3), (1e-5, -128), (40.0, 127), (0.25, 0)], ids=str)
def test_fast_fake_quantization_has_the_results_and_gradients_of_torch(scale, zero, low, high):
    generator = torch.Generator().manual_seed(0)
    steps = torch.cat([torch.randint(-400, 400, (2000,), generator=generator) / 2, torch.randn(2000) * 150])
    ends = torch.tensor([torch.inf, -torch.inf, 0.0, -0.0, low - zero, high - zero])
    x = (torch.cat([steps, ends]) * scale).requires_grad_()
    qparams = torch.tensor([scale]), torch.tensor([zero], dtype=torch.int32), low, high
    wanted, found = torch.fake_quantize_per_tensor_affine(x, *qparams), fake_quantized(x, *qparams)
    assert torch.equal(found, wanted)
    slopes = [torch.autograd.grad(y.sum(), x)[0] for y in (found, wanted)]
    at_the_end = torch.isclose(x, (torch.tensor([low, high]) - zero + torch.tensor([-0.5, 0.5]))[:, None] * scale).any(
        0
    )
    assert torch.equal(slopes[0][~at_the_end], slopes[1][~at_the_end])


@pytest.mark.parametrize("observes, rounds", [(True, True), (True, False), (False, True), (False, False)], ids=str)
def test_fast_fake_quantization_observes_and_obeys_its_switches(observes, rounds):
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randn(4, 50, generator=generator) * scale for scale in (1.0, 3.0, 0.2)]
    found = []
    for kind in (FakeQuantize, torchao.FakeQuantize):
        options = {"dtype": torch.int8, "quant_min": -128, "quant_max": 127, "qscheme": torch.per_tensor_affine}
        module = kind(observer=torchao.MovingAverageMinMaxObserver, **options)
        module(batches[0])
        (module.enable_observer if observes else module.disable_observer)()
        (module.enable_fake_quant if rounds else module.disable_fake_quant)()
        found.append([*(module(x) for x in batches), *module.state_dict().values()])
    assert all(torch.equal(y, x) for y, x in zip(*found, strict=True))
