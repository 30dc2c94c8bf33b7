"""Idioms whose grids were once so far from their values that the whole program was far from its float model."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from tests.compile.nearness import BACKENDS, decibels, sqnr_of
from tests.compile.small import Small, Tensors
from torch import nn

from micronpu.frontend.facts import IN_TRAINING
from micronpu.ir.lowering import Capabilities
from micronpu.quantize.identities import spelled_out

# --- masks in front of a softmax, along whatever axis -------------------------------------------------------------

_EDGES = (torch.rand(1, 12, 12, generator=torch.Generator().manual_seed(5)) < 0.4) | torch.eye(12).bool()


def _masked(axis: int) -> Small:
    """What graph attention does: each node weighs its neighbours."""

    def forward(_, x, edges):
        shown = edges > 0.5
        heads = x[..., None].expand(1, 12, 12, 4).masked_fill(~shown[..., None], -math.inf)
        return (
            torch.softmax(x.masked_fill(~shown, -math.inf), axis),
            torch.softmax(torch.where(shown, x, torch.full_like(x, -9e15)), axis),
            torch.softmax(x.masked_fill(~shown, -150.0), axis),
            torch.softmax(x.masked_fill(~_EDGES, -1e4), axis),
            torch.softmax(x + torch.where(_EDGES, 0.0, -1e9), axis),
            torch.softmax(heads, axis),
        )

    return Small(forward)


def _scores(random: torch.Generator) -> Tensors:
    edges = (torch.rand(1, 12, 12, generator=random) < 0.4) | torch.eye(12).bool()
    return torch.randn(1, 12, 12, generator=random), edges.float()


@pytest.mark.sweep
@pytest.mark.parametrize("target", BACKENDS)
@pytest.mark.parametrize("axis", [1, 2])
def test_what_a_mask_hides_takes_no_steps_from_the_scores_that_count(axis, target):
    assert min(decibels(_masked(axis), _scores, target)) >= 30.0


def _hidden(_: Small, x: torch.Tensor, edges: torch.Tensor) -> Tensors:
    shown = edges > 0.5
    return (
        x.masked_fill(~shown, -math.inf).amax(1),
        x.masked_fill(~shown, -1e4).max(-1).values,
        torch.where(shown, x, -1e9).amax(-1) + x[..., 0],
        F.max_pool1d(x.masked_fill(~_EDGES, -9e15), 12),
        x.masked_fill(~shown, math.inf).amin(-1),
        torch.where(_EDGES, x, torch.full_like(x, 1e4)).transpose(1, 2).amin(1),
        torch.sigmoid(x.masked_fill(~shown, -1e9)),
        torch.exp(x.masked_fill(~shown, -math.inf)).sum(-1),
        F.relu(torch.where(shown, x, -1e4)),
        torch.exp(-0.7 * x.masked_fill(~shown, 1e9)),
        torch.softmax(x.masked_fill(~shown, -1e9) / 3, -1),
    )


@pytest.mark.sweep
@pytest.mark.parametrize("target", BACKENDS)
def test_what_a_mask_hides_from_a_maximum_or_a_function_takes_no_steps_either(target):
    assert min(decibels(Small(_hidden), _scores, target)) >= 30.0


# --- functions that a model spells out ----------------------------------------------------------------------------


def _spelled_out(_: Small, x: torch.Tensor) -> Tensors:
    power = torch.exp(x - x.amax(1, keepdim=True))
    return (
        1 / (1 + torch.exp(-2 * x)),
        x / (1.0 + torch.exp(-x)),
        torch.log(1 + torch.exp(2 * x)),
        torch.log1p((2 * x).exp()),
        torch.log(torch.sigmoid(3 * x)),
        torch.log(torch.softmax(2 * x, 1)),
        power / power.sum(1, keepdim=True),
        x.exp() / x.exp().sum((1,), keepdim=True),
        x / torch.exp(0.5 * x),
        x * torch.tanh(torch.log(1 + torch.exp(x))),
        torch.sqrt(x**2),
    )


@pytest.mark.sweep
@pytest.mark.parametrize("target", BACKENDS)
def test_a_function_that_is_spelled_out_is_rounded_once(target):
    assert min(decibels(Small(_spelled_out), _noise, target)) >= 30.0


def test_what_only_looks_like_a_function_stays():
    """Another number than one, another axis, a sum of something else; and the float results are the same."""

    def forward(_: Small, x: torch.Tensor) -> Tensors:
        power = x.exp()
        return (
            1 / (2 + torch.exp(-x)),
            torch.log(1 - 0.5 * torch.sigmoid(x)),
            power / (2 * x).exp().sum(1, keepdim=True),
            power / power.sum((1, 2), keepdim=True),
            torch.exp(x - x.amax(1, keepdim=True)) / power.sum(2, keepdim=True),
            torch.sqrt(x * x + 1),
        )

    x = _noise(torch.Generator().manual_seed(2))[0]
    module = torch.export.export(Small(forward).eval(), (x,)).module(check_guards=False)
    before = module(x)
    assert spelled_out(module, Capabilities()) is False
    assert all(torch.equal(a, b) for a, b in zip(module(x), before, strict=True))


def test_a_number_that_is_trained_is_none_of_a_function():
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 1 / (self.one + torch.exp(-x))

    module = torch.export.export(Shifted(), (torch.zeros(1, 4),)).module(check_guards=False)
    IN_TRAINING.say(module, True)
    assert spelled_out(module, Capabilities()) is False


# --- averages of what has whole numbers only ----------------------------------------------------------------------


def _averages(_: Small, x: torch.Tensor) -> Tensors:
    above = (x > 0.3).float()
    return (
        above.mean((2, 3)),
        above.mean(1),
        torch.where(x > 0.3, 1.0, 0.0).mean((2, 3)),
        F.avg_pool2d(above, 4),
        F.interpolate(above, scale_factor=2.0, mode="bilinear"),
        F.interpolate(above, size=(21, 11), mode="bilinear"),
        F.avg_pool2d((x < 0.0).float(), 2),
        F.adaptive_avg_pool2d(above, (3, 5)),
        F.adaptive_avg_pool2d(above, 1),
        F.one_hot(x.argmax(1), 4).float().mean((1, 2)),
        torch.sign(x + 0.45).mean((2, 3)),
        torch.round(3 * x).mean((2, 3)),
        above.flatten(1).mean(1),
        ((x > -0.2) & (x < 0.9)).float().clamp(0.05, 0.3),
    )


@pytest.mark.sweep
@pytest.mark.parametrize("target", BACKENDS)
def test_averages_of_whole_numbers_lie_between_them(target):
    assert min(decibels(Small(_averages), _steps, target)) >= 30.0


# --- what is compared, of values that lie anywhere -----------------------------------------------------------------


def _resized(_: Small, x: torch.Tensor) -> Tensors:
    above = (x > 0.3).float()
    return (
        F.interpolate(above, scale_factor=2.0, mode="bilinear"),
        above.mean((2, 3)),
        torch.cat([x, above], 1),
        torch.stack([x, (x <= 0.3).float()], 1),
        torch.maximum(x, above),
        torch.where(x - 0.2 > 0.1, x, -1.0 * x),
        ((0.7 - 2 * x) > 0.1).float(),
    )


def _rounded(_: Small, x: torch.Tensor) -> Tensors:
    return torch.round(3 * x).mean((2, 3)), F.avg_pool2d(torch.round(3 * x), 2), torch.round(x) * 0.5


@pytest.mark.sweep
@pytest.mark.parametrize("target", BACKENDS)
@pytest.mark.parametrize("function", [_resized, _rounded])
def test_rounding_moves_nothing_past_what_it_is_compared_with(function, target):
    assert min(decibels(Small(function), _noise, target)) >= 30.0


def _around_zero(_: Small, x: torch.Tensor) -> Tensors:
    resized = F.interpolate((x > 0.0).float(), scale_factor=2.0, mode="bilinear")
    return resized, torch.sign(x).mean((2, 3)), F.avg_pool2d(torch.floor(3 * x), 2)


def _one_of_several(_: Small, x: torch.Tensor) -> Tensors:
    """What follows a choice between values that int8 may make equal, or a rounding of halves."""
    chosen = F.one_hot(x.argmax(1), 4).permute(0, 3, 1, 2).float()
    return (
        F.avg_pool2d(chosen, 4),
        F.adaptive_avg_pool2d(chosen, 3),
        F.interpolate(chosen, size=(21, 11), mode="bilinear"),
        F.adaptive_avg_pool2d(torch.sign(x), 5),
        F.interpolate(torch.sign(x), size=(31, 31), mode="bilinear", align_corners=True),
        F.interpolate(torch.round(x), scale_factor=2.0, mode="bilinear"),
        torch.where(x > 0.0, 1.0, 0.0).mean(1),
    )


@pytest.mark.sweep
@pytest.mark.parametrize("target", BACKENDS)
@pytest.mark.parametrize("function", [_around_zero, _one_of_several])
def test_jumps_are_as_near_as_steps_of_int8_allow(function, target):
    """Zero is a step of every grid, so that what is nearer to it than half a step is neither above it nor below.

    The best that is left is float arithmetic on the input as int8 has it: 20.6, 16.7 and 25.0 dB around zero here.
    """
    model = Small(function)
    random = torch.Generator().manual_seed(0)
    seen = torch.cat([_noise(random)[0] for _ in range(24)])
    held_out = torch.cat([_noise(random)[0] for _ in range(8)])
    step = float(seen.max() - seen.min()) / 255
    rounded = (held_out / step).round().clamp(round(float(seen.min()) / step), round(float(seen.max()) / step)) * step
    best = [sqnr_of(wanted, given) for wanted, given in zip(model(held_out), model(rounded), strict=True)]
    own = decibels(model, _noise, target)
    assert all(o >= b - 1.5 for o, b in zip(own, best, strict=True)), (own, best)


_STEP = 0.03


def _with_qparams(random: torch.Generator) -> Tensors:
    """Numbers that int8 has, and the ends of its grid."""
    x = torch.randint(-128, 128, (1, 4, 64), generator=random)
    x[0, :, :2] = torch.tensor([-128, 127])
    return (x * _STEP,)


@pytest.mark.parametrize("target", BACKENDS)
def test_numbers_that_differ_by_a_third_of_a_step_are_compared(target):
    bounds = torch.tensor([3.3, 7.3, 11.3, 15.3, 16.3]) * _STEP

    def forward(_: Small, x: torch.Tensor) -> Tensors:
        return (x[..., None] < bounds).sum(-1).float(), (x[..., None] >= bounds).float().sum(-1)

    assert min(decibels(Small(forward), _with_qparams, target)) >= 45.0


# --- functions that are endless where rows are zero ----------------------------------------------------------------


def _over_their_size(_: Small, x: torch.Tensor, y: torch.Tensor) -> Tensors:
    return (
        F.cosine_similarity(x, y, -1),
        F.normalize(x, dim=-1),
        x / (x.norm(dim=-1, keepdim=True) + 1e-6),
        x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-9),
    )


def _some_rows_of_zeros(random: torch.Generator) -> Tensors:
    shown = torch.rand(1, 8, 1, generator=random) > 0.2
    return torch.randn(1, 8, 8, generator=random) * shown, torch.randn(1, 8, 8, generator=random)


@pytest.mark.sweep
@pytest.mark.parametrize("target", BACKENDS)
def test_a_row_of_zeros_takes_no_steps_from_the_others(target):
    assert min(decibels(Small(_over_their_size), _some_rows_of_zeros, target)) >= 25.0


def _equal(_: Small, x: torch.Tensor, y: torch.Tensor) -> Tensors:
    """Numbers of two tensors, that are on two grids, and constants; and the largest of a row, which is on its own."""
    labels = torch.arange(-8, 9) / 3 + 0.1
    return (
        (x == y).float() * 2,
        torch.where(x != y, x, 2 * y),
        (x[..., :1] == labels).float(),
        (x == x.amax(-1, keepdim=True)).float() * y,
    )


@pytest.mark.sweep
@pytest.mark.parametrize("target", BACKENDS)
def test_equal_numbers_are_equal_with_their_own_qparams(target):
    def numbers(random: torch.Generator) -> Tensors:
        return tuple(torch.randint(-n, n + 1, (1, 4, 16, 16), generator=random) / 3 + 0.1 for n in (9, 14))

    assert min(decibels(Small(_equal), numbers, target)) >= 30.0


# --- what is joined with others, for a while or for good ----------------------------------------------------------


class Head(nn.Module):
    """A detector's: sizes and positions are computed in place beside each other, on 0..1, 0..2 and 0..64."""

    def __init__(self, assigns: bool) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer, self.assigns = nn.Conv2d(4, 8, 1), assigns
        self.eval()

    def forward(self, x: torch.Tensor) -> Tensors:
        y = torch.sigmoid(self.layer(x))
        if not self.assigns:
            return y[:, :2] * 64, y[:, 2:4] * 2, y[:, 4:], y[:, 3] * 2
        y[:, :2] = y[:, :2] * 64
        y[:, 2:4] = y[:, 2:4] * 2
        last = y.permute(0, 2, 3, 1)
        return last[..., :2].permute(0, 3, 1, 2), y[:, 2:4], y[:, 4:], y[:, 3]


@pytest.mark.sweep
@pytest.mark.parametrize("target", BACKENDS)
def test_an_assignment_to_a_part_takes_no_steps_from_the_others(target):
    assigned, apart = (decibels(Head(assigns), _noise, target) for assigns in (True, False))
    assert min(apart) >= 40.0
    assert all(a >= b - 1.0 for a, b in zip(assigned, apart, strict=True))


def _joined(_: Small, x: torch.Tensor) -> Tensors:
    small, large = x * 0.5, torch.tanh(x) * 40.0
    return (
        torch.cat([small, large], 1)[:, :4] * 1.5,
        torch.cat([large, small], 1)[:, 3:6, ..., 1::2][:, 1:],
        torch.cat([large, small, 2 * small], 2)[:, :, -28:-2:3],
        torch.stack([small, large, x], 1)[:, 0],
        torch.stack([large, small], -1).unbind(-1)[1],
        torch.cat([large, small], 1).transpose(1, 2).narrow(2, 4, 3),
    )


@pytest.mark.parametrize("target", BACKENDS)
def test_a_part_of_a_concatenation_keeps_its_own_qparams(target):
    assert min(decibels(Small(_joined), _noise, target)) >= 30.0


def _joined_and_read(_: Small, x: torch.Tensor) -> Tensors:
    """Values of 0..1.5 and 0.05 beside such of 60, each of which something else reads as well."""
    share, small, large = torch.sigmoid(x) * 1.5, x * 0.02, torch.tanh(x) * 60.0
    pooled = F.max_pool2d(share, 2)
    stacked = torch.stack([large[..., ::2, ::2], pooled], -1)
    return torch.cat([share, large, small], 1), share * 0.7, small + 0.01, stacked, pooled - 0.3


@pytest.mark.parametrize("target", BACKENDS)
def test_what_is_joined_with_larger_values_keeps_its_own_qparams_for_others(target):
    assert min(decibels(Small(_joined_and_read), _noise, target)) >= 35.0


class Dense(nn.Module):
    """A dense block, of which each layer's values are some ten times as large as those before it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Conv2d(4 * n, 4, 3, padding=1) for n in (1, 2, 3))
        self.eval()

    def forward(self, x: torch.Tensor) -> Tensors:
        first, second, third = self.layers
        one = torch.cat([x, first(x)], 1)
        two = torch.cat([one, second(one) * 30], 1)
        return one.mean((2, 3)), torch.cat([two, third(two) * 30], 1)


class JoinedTwice(Dense):
    """A layer's values are joined with others and read, joined with large ones, and joined with what is joined."""

    def forward(self, x: torch.Tensor) -> Tensors:
        first, second, third = self.layers
        small = first(x) * 0.1
        one = torch.cat([x * 0.1, small], 1)
        large = torch.cat([small, second(one) * 30], 1)
        nested = torch.cat([torch.cat([small * 2, x * 0.5], 1), small], 1)
        return one.mean((2, 3)), nested, third(nested), torch.cat([large, one], 1), torch.cat([nested, x * 30], 1)


@pytest.mark.sweep
@pytest.mark.parametrize("target", BACKENDS)
def test_what_is_joined_again_and_again_has_the_qparams_of_where_it_is_read(target):
    means, whole = decibels(Dense(), _noise, target)
    assert means >= 30.0 and whole >= 24.0
    assert min(decibels(JoinedTwice(), _noise, target)[:3]) >= 30.0


def _averages_joined(_: Small, x: torch.Tensor) -> Tensors:
    """Averages and the shares of a softmax beside values of 60, some of which something else reads as well."""
    large, shares = torch.exp(x * 0.5) * 6, torch.sigmoid(x).flatten(2)
    size, mean, pooled = x.abs().mean(-1), x.mean(-1, keepdim=True).expand_as(x) + 0.0, F.avg_pool2d(x, 4)
    return (
        torch.cat([size, large.mean(-1)], 1),
        size * 0.7,
        torch.stack([pooled, F.max_pool2d(x * 20, 4)], 1),
        torch.cat([mean, large], 1),
        torch.cat([F.softmax(shares, -1), large.flatten(2)], 1),
        large - 1.0,
    )


@pytest.mark.sweep
@pytest.mark.parametrize("target", BACKENDS)
def test_what_is_joined_has_not_the_qparams_of_an_average_or_a_softmax(target):
    assert min(decibels(Small(_averages_joined), _noise, target)) >= 28.0


def _extrema(_: Small, x: torch.Tensor) -> Tensors:
    """The lesser of a small value and a large one, and the other way round."""
    small, large = torch.sigmoid(x) * 0.5, torch.exp(x) * 5 + 0.2
    least = torch.minimum(small, large)
    return (
        torch.minimum(torch.sigmoid(x) * 0.5, torch.exp(x) * 5 + 0.2),
        torch.maximum(-torch.relu(x) * 40, torch.tanh(x) * 0.3),
        torch.minimum(x, torch.full((1, 4, 1, 1), 50.0)),
        least,
        torch.cat([least, small], 1),
        small * 3,
        torch.maximum(x, 0.1 * x),
    )


@pytest.mark.sweep
@pytest.mark.parametrize("target", BACKENDS)
def test_an_extremum_is_with_qparams_of_its_results_where_its_operands_are_much_larger(target):
    assert min(decibels(Small(_extrema), _noise, target)) >= 30.0


def test_a_small_constant_has_qparams_that_hold_it():
    """1 / 7.68e6 is two of the smallest steps of a value that is computed, 2 ** -24."""
    model = Small(lambda _, x: (x * 3e4).sum(3) * (1.0 / 7.68e6))
    assert min(decibels(model, _noise, "imxrt700")) >= 35.0


def _with_masks(_: Small, x: torch.Tensor) -> Tensors:
    above = (x > 0.3).float()
    return (
        torch.cat([x, above], 1),
        torch.stack([x, above], 1),
        torch.stack([above, (x < -1.0).float()], -1),
        torch.cat([above, 0.3 * (x < -1.0).float()], 2),
        torch.maximum(x, above),
        torch.minimum(torch.sigmoid(x), above),
    )


@pytest.mark.parametrize("target", BACKENDS)
def test_a_mask_may_be_joined_with_other_values(target):
    assert min(decibels(Small(_with_masks), _steps, target)) >= 30.0


def _noise(random: torch.Generator) -> Tensors:
    return (torch.randn(1, 4, 16, 16, generator=random),)


def _steps(random: torch.Generator) -> Tensors:
    """Values so far from what they are compared with that int8 rounds none of them to the other side."""
    return ((torch.randn(1, 4, 16, 16, generator=random) * 3).round() / 3 + 0.1,)
