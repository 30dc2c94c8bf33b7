"""Choices and masks in quantization-aware training: what they hide weighs nothing on the NPU either."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import micronpu
from micronpu.quantize.qat import quantize_aware_training
from micronpu.targets.registry import device_for


class Choosing(nn.Module):
    """Choices by comparisons and their logic, what is filled, and what a given mask and a constant one hide."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.Linear(8, 8)

    def forward(self, x, mask):
        y = torch.where((x > 0.0) & (x < 1.0), self.layer(x), x)
        y = y.masked_fill(y < -1.0, -1.0)
        scores = self.layer(y).masked_fill(mask, -torch.inf)
        causal = (x @ y.mT + torch.full((4, 4), -torch.inf).triu(1)).softmax(-1)
        return scores.softmax(-1), causal


@pytest.mark.parametrize("target", ["imxrt700-neutron", "ethos-u55-128"])
def test_choices_and_masks_train_and_mean_the_same_on_the_npu(target):
    generator = torch.Generator().manual_seed(0)

    def sample(share=0.3):
        mask = torch.rand(1, 4, 8, generator=generator) < share
        mask[..., 0] = False
        return torch.randn(1, 4, 8, generator=generator) * 2, mask

    def train(module):
        optimizer = torch.optim.SGD(module.parameters(), 1e-2)
        for _ in range(8):
            optimizer.zero_grad()
            shares, causal = module(*sample())
            (shares[..., 0].mean() - causal[..., 0].mean()).backward()
            optimizer.step()

    quantizer = device_for(target).quantizer(is_qat=True)
    module = quantize_aware_training(Choosing(), sample(), train, quantizer)
    program = micronpu.compile(module, sample(), target)
    assert program.report.agreement.reason == ""
    for _ in range(4):
        x, mask = sample()
        shares, causal = program.run(x, mask)
        assert float((shares * mask).max()) == 0.0 and float((causal * torch.ones(4, 4).triu(1)).max()) == 0.0
        for found, wanted in zip((shares, causal), module(x, mask), strict=True):
            assert float((found - wanted).abs().max()) <= 2.5 / 256
