"""Choices and masks in quantization-aware training: what they hide weighs nothing on the NPU either."""

from __future__ import annotations

import math

import pytest
import torch
from tests.compile.nearness import BACKENDS, decibels
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


@pytest.mark.sweep
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


def _softmax(x, axis):
    """A softmax as a model writes it."""
    parts = torch.exp(x - x.amax(axis, keepdim=True))
    return parts / parts.sum(axis, keepdim=True)


def _softmax_of_pairs(x, axis):
    """The same by the maximum that also has positions."""
    parts = (x - x.max(axis, keepdim=True)[0]).exp()
    return parts / parts.sum(axis, keepdim=True)


def _logsumexp(x, axis):
    """A logsumexp as a model writes it."""
    largest = x.amax(axis, keepdim=True)
    return largest + torch.log(torch.exp(x - largest).sum(axis, keepdim=True))


def _logsumexp_of_rows(x, axis):
    """The same without the axis in its result."""
    largest = x.max(axis, keepdim=True).values
    return (x - largest).exp().sum(axis).log() + largest.squeeze(axis)


class ByHand(nn.Module):
    """What reads scores behind masks: filled or chosen, given or constant, along the last axis and another."""

    def forward(self, x, hidden):
        constant = torch.ones(8, 8).triu(5).bool()
        results = []
        for number, axis in enumerate((-1, 1)):
            y = x * (1 + number)
            results += [
                _softmax(y.masked_fill(hidden, -math.inf), axis),
                _softmax(y.masked_fill(constant.mT if axis == 1 else constant, -1e4), axis),
                _softmax_of_pairs(y.masked_fill(hidden, -math.inf), axis),
                torch.logsumexp(torch.where(hidden, -1e4, y), axis),
                torch.logsumexp(y.masked_fill(constant.mT if axis == 1 else constant, -math.inf), axis),
                _logsumexp(y.masked_fill(hidden, -math.inf), axis),
                _logsumexp(y + hidden.float() * -1e4, axis),
                _logsumexp_of_rows(y.masked_fill(hidden, -1e4), axis),
            ]
        return results


@pytest.mark.sweep
@pytest.mark.parametrize("target", BACKENDS)
def test_what_is_written_by_hand_behind_a_mask_is_near_float(target):
    shown = torch.eye(8).bool() | torch.eye(8).bool().roll(1, 0) | torch.eye(8).bool().roll(2, 0)

    def draw(random):  # no rare values and no rows of one, whose range calibration may miss
        hidden = (torch.rand(1, 8, 8, generator=random) < 0.4) & ~shown
        return torch.rand(1, 8, 8, generator=random) * 8 - 4, hidden

    found = decibels(ByHand().eval(), draw, target)
    assert min(found) >= 30, [round(f, 1) for f in found]


class BehindMask(nn.Module):
    """Functions whose results of a number that hides are numbers like others."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.Linear(8, 16)

    def forward(self, x, hidden):
        y = self.layer(x).masked_fill(hidden, -1e4)
        functions = (torch.tanh, torch.atan, torch.sin, torch.cos, torch.sinc, torch.erfc, torch.asinh)
        return [f(y) for f in functions] + [2.0**y, torch.fmod(y, 3.0)]


def test_functions_of_one_element_behind_a_mask_are_near_float():
    def draw(random):
        return torch.randn(1, 32, 8, generator=random), torch.rand(1, 32, 16, generator=random) < 0.3

    found = decibels(BehindMask().eval(), draw, "ethos-u55-128")
    assert min(found) >= 30, [round(f, 1) for f in found]


class Spread(nn.Module):
    """Sums of exponentials of rows that are far from each other, of which only the largest count."""

    def forward(self, x):
        return torch.logsumexp(x, -1)


def test_distances_that_weigh_nothing_cost_a_logsumexp_no_steps():
    def draw(random):
        x = torch.randn(1, 8, 8, generator=random)
        x[..., 0] -= 500
        return (x,)

    random = torch.Generator().manual_seed(0)
    rows = [draw(random) for _ in range(8)]
    module = micronpu.compile(Spread().eval(), rows[0], "imxrt700", calibration=rows, verify=False).quantized
    (exponential,) = (n for n in module.graph.nodes if "aten.exp" in str(n.target))
    assert exponential.args[0].args[1] <= 16 / 255 + 1e-6


def test_scores_may_be_moved_to_a_device():
    """As Keras writes its layers."""

    class Moved(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x):
            return torch.softmax(self.layer(x).to("cpu"), -1)

    x = torch.linspace(-1, 1, 8)[None]
    report = micronpu.compile(Moved().eval(), (x,), "ethos-u55-128", calibration=[x], verify=False).report
    assert report.delegated == report.operators
