"""Models with tensors that have no elements: they leave no trace in the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import micronpu
from micronpu.frontend.exported import exported


class Net(nn.Module):
    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(self, *inputs)


def no_columns(x: torch.Tensor) -> torch.Tensor:
    return x[:, :0]


def written(m: Net, x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[:, 3:3] = 0
    return torch.relu(y)


class Streaming(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("past", torch.zeros(1, 0))
        self.layer = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        joined = torch.cat([self.past, x], 1)
        self.past = joined[:, 8:]
        return self.layer(joined)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "sum": lambda: Net(lambda m, x: torch.relu(x) + no_columns(x).sum(1, keepdim=True)),
    "mean": lambda: Net(lambda m, x: torch.relu(x) + torch.nan_to_num(no_columns(x).mean(1, keepdim=True), 5.0)),
    "cat": lambda: Net(lambda m, x: torch.relu(torch.cat([no_columns(x), x, x, torch.zeros(1, 0)], 1))),
    "cat of one": lambda: Net(lambda m, x: torch.relu(torch.cat([torch.empty(0), x[0]]))),
    "split": lambda: Net(lambda m, x: torch.relu(x.split([0, 5, 3], 1)[1])),
    "tensor_split": lambda: Net(lambda m, x: torch.relu(torch.cat(x.tensor_split([0, 5], 1)[::-1], 1))),
    "layers of width 0": lambda: Net(lambda m, x: m.b(torch.relu(m.a(x))) + x, a=nn.Linear(8, 0), b=nn.Linear(0, 8)),
    "pad": lambda: Net(lambda m, x: F.pad(no_columns(x), (3, 5), value=3.0) + x),
    "scatter": lambda: Net(lambda m, x: torch.relu(torch.slice_scatter(x, no_columns(x), 1, 0, 0))),
    "assignment": lambda: Net(written),
    "state": Streaming,
}


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("name", MODELS)
def test_a_program_has_no_empty_tensors(name: str) -> None:
    x = torch.randn(1, 8, generator=torch.Generator().manual_seed(0))
    model = MODELS[name]().eval()
    found = exported(model, (x,))
    assert torch.equal(found.module(x), model(x)) and not found.states
    values = [value for node in found.module.graph.nodes if isinstance(value := node.meta.get("val"), torch.Tensor)]
    assert values and all(value.numel() for value in values)


def test_an_empty_input_is_taken_and_not_read() -> None:
    model = Net(lambda m, x, past: torch.relu(torch.cat([past, x], 1))).eval()
    rows = [(torch.randn(1, 8, generator=torch.Generator().manual_seed(i)), torch.zeros(1, 0)) for i in range(4)]
    program = micronpu.compile(model, rows[0], "imxrt700-neutron", calibration=rows)
    assert program.report.delegated == program.report.operators == 1
    assert float((program.run(*rows[0]) - model(*rows[0])).abs().max()) < 0.05


def test_a_dense_block_that_begins_with_no_features() -> None:
    def block(m: Net, x: torch.Tensor) -> torch.Tensor:
        features = torch.zeros(1, 0, 6, 6)
        for layer in m.layers:
            features = torch.cat([features, torch.relu(layer(torch.cat([x, features], 1)))], 1)
        return features

    torch.manual_seed(0)
    model = Net(block, layers=nn.ModuleList(nn.Conv2d(3 + 2 * i, 2, 3, padding=1) for i in range(2))).eval()
    rows = [torch.randn(1, 3, 6, 6) for _ in range(20)]
    report = micronpu.compile(model, rows[0], "imxrt700-neutron", calibration=rows).report
    assert report.delegated == report.operators and report.accuracy.sqnr > 28


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (Net(lambda m, x: (torch.relu(x), no_columns(x))), r"Result 1 of the model is empty, of the shape \[1, 0\]"),
        (
            Net(lambda m, x: F.scaled_dot_product_attention(x[None], x[None, :0], x[None, :0])),
            r"`scaled_dot_product_attention` \(.*test_empty.py:\d+\) computes with an empty tensor",
        ),
    ],
)
def test_what_remains_empty_is_refused(model: nn.Module, says: str) -> None:
    with pytest.raises(micronpu.ModelError, match=says):
        exported(model.eval(), (torch.zeros(1, 8),))
