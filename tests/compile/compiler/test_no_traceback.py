"""Whatever a user hands in, the answer is one sentence: models, inputs, calibration, and calls of the API."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.compile.refusals import refused
from torch import Tensor, nn
from torch.nn import functional as F

import micronpu
from micronpu.base.errors import MicroNpuError, ModelError, OptionError, UnsupportedError

X = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
IDS = torch.zeros(1, 3, dtype=torch.int64)


class Net(nn.Module):
    """A function of a module with two layers and a tensor."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(8, 4)
        self.bilinear, self.embedding = nn.Bilinear(8, 8, 4), nn.Embedding(4, 8)
        self.eval()

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(self, *inputs)


@torch.library.custom_op("micronpu_tests::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2


@twice.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def compiled(function: Callable[..., Any], x: Any = X, **options: Any) -> Any:
    options.setdefault("calibration", [x])
    net = Net(function)
    net.fc.double()
    return micronpu.compile(net, x, options.pop("target", "imxrt700-neutron"), **options)


def conv(m: Net, x: Tensor) -> Tensor:
    y: Tensor = m.conv(x)
    return y


CASES: dict[str, tuple[Callable[[], Any], type[MicroNpuError], tuple[str, ...]]] = {
    "no target": (lambda: compiled(conv, target=None), OptionError, ("No target is given",)),
    "targets": (lambda: compiled(conv, target=["imxrt700"]), OptionError, ("The target is of type list",)),
    "nothing": (lambda: compiled(lambda m, x: None), ModelError, ("The model returns no tensor",)),
    "empty tuple": (lambda: compiled(lambda m, x: ()), ModelError, ("The model returns no tensor",)),
    "shape": (lambda: compiled(lambda m, x: x.shape), ModelError, ("The model returns no tensor",)),
    "text": (lambda: compiled(lambda m, x: "a"), ModelError, ("The model returns no tensor",)),
    "named tuple": (
        lambda: compiled(lambda m, x: torch.sort(x)),
        ModelError,
        ("The model returns a torch.return_types.sort", "values, indices = torch.sort(x)"),
    ),
    "named tuple within": (
        lambda: compiled(lambda m, x: [x, (torch.max(x, 1),)]),
        ModelError,
        ("torch.return_types.max",),
    ),
    "custom operator": (
        lambda: compiled(lambda m, x: twice(m.conv(x))),
        UnsupportedError,
        ("ExecuTorch cannot call micronpu_tests::twice, as `twice`", "register its out variant"),
    ),
    "random operator": (
        lambda: compiled(lambda m, x: torch.poisson(torch.sigmoid(x))),
        UnsupportedError,
        ("aten::poisson.out, which `poisson`", "test_no_traceback.py:"),
    ),
    "no kernel, sort": (
        lambda: compiled(lambda m, x: torch.sort(x)[0]),
        UnsupportedError,
        (
            "no portable kernel for aten::sort.values, which `sort`",
            "test_no_traceback.py:",
            "torch.minimum",
            "allow_missing_kernels",
        ),
    ),
    "no kernel, bags": (
        lambda: compiled(lambda m, x: F.embedding_bag(torch.arange(3), x[0, 0], torch.tensor([0, 1]))),
        UnsupportedError,
        ("_embedding_bag", "nn.Embedding", "allow_missing_kernels"),
    ),
    "no kernel, bilinear": (
        lambda: compiled(lambda m, x: m.bilinear(x, x)),
        UnsupportedError,
        ("aten::_trilinear.out, which `bilinear`", "test_no_traceback.py:"),
    ),
    "size 0": (
        lambda: compiled(lambda m, x: F.interpolate(x, scale_factor=0.01)),
        ModelError,
        ("Result 0 of the model is empty, of the shape [1, 3, 0, 0]",),
    ),
    "index": (
        lambda: compiled(lambda m, x: m.embedding(x), IDS, calibration=[IDS, IDS + 9]),
        ModelError,
        ("The model cannot compute calibration item 1: index out of range", "indices within their range"),
    ),
    "calibration without memory": (
        lambda: compiled(conv, calibration=[X.to("meta")]),
        ModelError,
        ("Calibration item 0, input 0 is a tensor on meta",),
    ),
    "example without memory": (
        lambda: compiled(conv, X.to("meta"), calibration=[X]),
        ModelError,
        ("Example input 0 is on the device meta",),
    ),
    "sparse": (lambda: compiled(conv, X.to_sparse()), ModelError, ("Example input 0 is stored as sparse_coo",)),
    "complex": (lambda: compiled(conv, X.to(torch.complex64)), ModelError, ("Example input 0 is complex",)),
    "complex argument": (
        lambda: compiled(lambda m, x: (x * 1j).imag + x),
        ModelError,
        ("has the complex number 1j as an argument, which no program can hold", "imaginary parts as two"),
    ),
    "complex constant": (
        lambda: compiled(lambda m, x: (x * torch.full((8,), 2.0).to(torch.complex64)).real + x),
        UnsupportedError,
        ("no portable kernel for aten::mul.out for complex numbers", "test_no_traceback.py:", "micronpu.audio.LogMel"),
    ),
    "exit": (lambda: compiled(lambda m, x: sys.exit(3)), ModelError, ("its forward calls sys.exit(3)",)),
    "callback": (lambda: compiled(conv, callback=5), OptionError, ("`callback` is of type int",)),
    "switch": (
        lambda: compiled(conv, verify=micronpu.Verification(allow_missing_kernels="yes")),
        OptionError,
        ("`allow_missing_kernels` is 'yes'; it is True or False.",),
    ),
    "infinity": (
        lambda: compiled(lambda m, x: m.conv(1 / (x - x))),
        ModelError,
        ("`log", "test_no_traceback.py:", "computes NaN or infinity with calibration item 0"),
    ),
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", CASES)
def test_one_sentence(name):
    call, kind, parts = CASES[name]
    if name == "switch":
        with pytest.raises(kind) as caught:
            call()
        assert parts[0] in str(caught.value)
        return
    refused(call, kind, *parts)


def test_expanded_examples_are_as_good_as_others():
    x = torch.randn(1, 1, 8, 8).expand(1, 3, 8, 8)
    program = compiled(conv, x)
    assert torch.equal(program.run(x), program.run(x.contiguous()))


def test_a_step_that_fails_says_which(monkeypatch):
    def fail(*_: Any, **__: Any) -> None:
        raise KeyError("something\nwithin")

    monkeypatch.setattr("micronpu.compiler.host.outline", fail)
    with pytest.raises(MicroNpuError, match="The step `compile` of the compilation failed: KeyError: 'something"):
        compiled(conv)
