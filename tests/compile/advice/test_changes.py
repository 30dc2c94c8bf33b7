"""Each change of a network: where it is made, and that what comes out is the network it says."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from micronpu.advice.changes import CHANGES, Change
from micronpu.frontend.exported import exported, finished
from micronpu.frontend.facts import EXPORTED

X = torch.linspace(-1, 1, 3 * 16 * 16).reshape(1, 3, 16, 16)
BY_NAME = {change.name: change for change in CHANGES}


class Branches(nn.Module):
    """Sums, a concatenation, a depthwise and a gated layer, channels that are no multiple of 16."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 20, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(20)
        self.depthwise = nn.Conv2d(20, 20, 3, padding=1, groups=20)
        self.squeeze, self.excite = nn.Conv2d(20, 6, 1), nn.Conv2d(6, 20, 1)
        self.side = nn.Conv2d(20, 36, 1)
        self.joined = nn.Conv2d(56, 24, 1)
        self.scale = nn.Parameter(torch.rand(24, 1, 1) + 0.5)
        self.head = nn.Linear(24 * 4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        x = x + self.depthwise(x)
        x = x * torch.sigmoid(self.excite(torch.relu(self.squeeze(x.mean((2, 3), keepdim=True)))))
        x = torch.relu(self.joined(torch.cat([x, self.side(x)], 1))) * self.scale
        return self.head(nn.functional.adaptive_avg_pool2d(x, 2).flatten(1))


class Fixed(nn.Module):
    """Channels that nothing may change: a softmax over them, a shuffle, the output."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Conv2d(3, 20, 3), nn.Conv2d(20, 18, 1), nn.Conv2d(18, 20, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.softmax(self.first(x), 1)
        return self.last(nn.functional.channel_shuffle(self.second(x), 2))


def changed(model: nn.Module, change: Change, x: torch.Tensor = X) -> tuple[torch.fx.GraphModule, int]:
    torch.manual_seed(0)
    found = exported(model.eval(), (x,))
    module = copy.deepcopy(found.module)
    EXPORTED.say(module, True)
    places = len(change.edit(module))
    module.graph.lint()
    module.recompile()
    return finished(module, (x,)), places


def widths(module: torch.fx.GraphModule) -> list[int]:
    return [n.meta["val"].shape[1] for n in module.graph.nodes if str(n.target).startswith("aten.conv2d")]


def test_wider_channels_compute_the_same() -> None:
    torch.manual_seed(0)
    model = Branches().eval()
    module, places = changed(model, BY_NAME["channels up to multiples of 16"])
    assert widths(module) == [32, 32, 16, 32, 48, 32] and places == 5  # the depthwise one follows
    assert torch.allclose(module(X), model(X), atol=1e-5)


def test_narrower_channels_are_handed_on() -> None:
    module, places = changed(Branches(), BY_NAME["channels down to multiples of 16"])
    assert widths(module) == [16, 16, 6, 16, 32, 16] and places == 4
    assert module(X).shape == (1, 5)


def test_channels_that_something_else_reads_stay() -> None:
    for name in ("channels up to multiples of 16", "channels down to multiples of 16"):
        module, places = changed(Fixed(), BY_NAME[name])
        assert places == 0 and widths(module) == [20, 18, 20]


def test_a_doubled_picture_differs_only_at_its_edge() -> None:
    model = nn.Upsample(scale_factor=2, mode="bilinear").eval()
    module, places = changed(model, BY_NAME["transposed convolution for bilinear"])
    inner = (..., slice(1, -1), slice(1, -1))
    assert places == 1 and torch.allclose(module(X)[inner], model(X)[inner], atol=1e-6)


@pytest.mark.parametrize("mode", ("tripled", "aligned"))
def test_another_resize_has_no_transposed_convolution(mode: str) -> None:
    model = {
        "tripled": nn.Upsample(scale_factor=3, mode="bilinear"),
        "aligned": nn.UpsamplingBilinear2d(scale_factor=2),
    }
    assert changed(model[mode], BY_NAME["transposed convolution for bilinear"])[1] == 0


def written(*layers: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*layers).eval()


def same_weights(model: nn.Sequential, other: nn.Sequential) -> None:
    """Gives another form of a network its weights, the middle of each kernel where it is smaller."""
    for own, its in zip(model.parameters(), other.parameters(), strict=True):
        less = [(a - b) // 2 for a, b in zip(its.shape, own.shape, strict=True)]
        part = its.detach()[tuple(slice(n, n + size) for n, size in zip(less, own.shape, strict=True))]
        own.data.copy_(part)


def pair(*layers: nn.Module) -> tuple[nn.Module, ...]:
    return nn.Conv2d(3, 4, 3), *layers


def strided(stride: int, *more: nn.Module) -> tuple[nn.Module, ...]:
    return nn.Conv2d(3, 4, 3, padding=1, stride=stride), nn.BatchNorm2d(4), nn.ReLU(), *more


def kernels(size: int, wide: int) -> tuple[nn.Module, ...]:
    dilated = nn.Conv2d(4, 4, (1, wide), padding=(0, wide - 1), dilation=2)
    return nn.Conv2d(3, 4, size, padding=size // 2, stride=2), nn.ReLU(), dilated


REWRITTEN = {
    "ReLU for SiLU": (pair(nn.SiLU()), pair(nn.ReLU())),
    "nearest for bilinear": (pair(nn.UpsamplingBilinear2d(scale_factor=2)), pair(nn.Upsample(scale_factor=2))),
    "stride 2 for a pool": (strided(1, nn.MaxPool2d(2)), strided(2)),
    "no softmax at the output": (pair(nn.Softmax(1)), pair()),
    "3 x 3 for larger kernels": (kernels(7, 5), kernels(3, 3)),
}


@pytest.mark.parametrize("name", REWRITTEN)
def test_a_change_is_the_network_written_that_way(name: str) -> None:
    before, after = (written(*layers) for layers in REWRITTEN[name])
    same_weights(after, before)
    module, places = changed(before, BY_NAME[name])
    assert places and torch.allclose(module(X), after(X), atol=1e-6)


NOT_CHANGED = {
    "stride 2 for a pool": nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.MaxPool2d(2)),
    "no softmax at the output": nn.Sequential(nn.Conv2d(3, 4, 3), nn.Softmax(1), nn.ReLU()),
    "3 x 3 for larger kernels": nn.Sequential(nn.Conv2d(3, 4, 5), nn.Conv2d(4, 4, 2, padding=1)),
    "batch norm for layer or group norm": nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)),
}


@pytest.mark.parametrize("name", NOT_CHANGED)
def test_no_place_no_change(name: str) -> None:
    """A stride of 2 already, a softmax that is read, a kernel without its padding, a norm that is a batch norm."""
    assert changed(NOT_CHANGED[name], BY_NAME[name])[1] == 0


def test_norms_become_a_factor_and_a_summand() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.LayerNorm((4, 14, 14), elementwise_affine=False))
    module, places = changed(model, BY_NAME["batch norm for layer or group norm"])
    assert places == 2 and torch.allclose(module(X), model[0](X))  # their factors are 1, their summands 0
