"""Failures of torch.export: the construct, the user's source line, and what to write instead."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.ao.quantization as eager
from torch import nn

import micronpu
from micronpu.frontend.exported import exported


class Net(nn.Module):
    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: torch.Tensor, *others: torch.Tensor) -> Any:
        return self.function(self, x, *others)


class Opaque:
    def __init__(self, value: torch.Tensor) -> None:
        self.value = value


def packed(m: Any, x: torch.Tensor) -> Any:
    rows = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([9, 4]), batch_first=True)
    return m.gru(rows)[1]  # line: packed


FAILURES: list[tuple[str, Callable[..., Any], str, str]] = [
    ("if", lambda m, x: x * 2 if x.mean() > 1 else x, "Python branches on the value of a tensor", "torch.where"),
    ("item", lambda m, x: x * float(x.abs().max().item()), "a number is taken out of a tensor", "instead of `.item()`"),
    ("int", lambda m, x: x[:, : int(x.abs().max())], "a number is taken out of a tensor", "instead of `.item()`"),
    ("numpy", lambda m, x: torch.from_numpy(x.numpy() * 2), "NumPy computes with a tensor", "function of torch"),
    ("packed", packed, "packed sequences cannot be exported", "by an index or a mask"),
    ("copied", lambda m, x: copy.deepcopy(x) * 2, "a tensor is copied by Python", "x.clone()"),
    ("gradient", lambda m, x: torch.autograd.grad(x.sum(), x), "forward computes a gradient", "as operators"),
    ("object", lambda m, x: Opaque(x * 2), "the model returns an object", "a tuple, list or dictionary of tensors"),
]
WITHOUT_LINE = ("object",)
SOURCE = Path(__file__).read_text().splitlines()


@pytest.mark.parametrize(("name", "function", "what", "hint"), FAILURES, ids=[name for name, *_ in FAILURES])
def test_a_failure_names_the_construct_and_its_line(
    name: str, function: Callable[..., Any], what: str, hint: str
) -> None:
    with pytest.raises(micronpu.ModelError) as caught:
        exported(Net(function, gru=nn.GRU(6, 4, batch_first=True)).eval(), (torch.randn(2, 9, 6),))
    assert what in str(caught.value) and hint in str(caught.value)
    found = re.search(rf", at {re.escape(__file__)}:(\d+)\.", str(caught.value))
    assert (found is None) == (name in WITHOUT_LINE)
    if found is not None:
        line = SOURCE[int(found[1]) - 1]
        assert f'("{name}", ' in line or f"# line: {name}" in line


def test_a_missing_input_is_named() -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x + y

    with pytest.raises(micronpu.ModelError, match=r"another number of inputs .*'y'.*one example input for each"):
        exported(Two().eval(), (torch.zeros(1),))


def prepared() -> nn.Module:
    net = nn.Sequential(eager.QuantStub(), nn.Conv2d(3, 4, 3), eager.DeQuantStub()).eval()
    net.qconfig = eager.get_default_qconfig("fbgemm")
    return eager.prepare(net)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", [True, False])
def test_eager_mode_quantization_is_named(mode: bool) -> None:
    x = torch.randn(1, 3, 8, 8)
    observed = prepared()
    observed(x)
    for model, says in (
        (
            eager.convert(copy.deepcopy(observed)),
            r"`0` of the model Sequential \(Quantize\) is quantized",
        ),
        (eager.quantize_dynamic(nn.Sequential(nn.Linear(8, 2)), {nn.Linear}), "is quantized in eager mode"),
        (observed, r"is an observer or a fake quantizer that was left in the model"),
    ):
        with pytest.raises(micronpu.ModelError, match=says):
            exported(model.train(mode), (x,))


def test_weights_in_the_place_of_a_model() -> None:
    net = nn.Sequential(nn.Linear(8, 4)).eval()
    for weights in (net.state_dict(), {"epoch": 3, "model": net.state_dict()}):
        for function in (micronpu.compile, micronpu.check):
            with pytest.raises(micronpu.ModelError, match=r"dictionary of weights .*load_state_dict"):
                function(weights, torch.zeros(1, 8), "ethos-u55-128", calibration=[torch.zeros(1, 8)])


def test_a_clamp_at_a_number_from_an_input_is_named() -> None:
    """Its bounds are unknown when it is quantized, so that it stays with what reads the number."""

    class Clamped(nn.Module):
        def forward(self, x: torch.Tensor, most: torch.Tensor) -> torch.Tensor:
            return x.sin().clamp(min=-1.0, max=most.item()) * 2

    inputs = torch.randn(1, 8), torch.tensor(3)
    with pytest.raises(micronpu.UnsupportedError, match=r"`item` \(.*test_failures.py:\d+\) does on the host"):
        micronpu.compile(Clamped().eval(), inputs, "corstone300", calibration=[inputs])
