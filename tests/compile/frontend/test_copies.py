"""Models with tensors that have a history of gradients, of which torch makes no deep copy."""

from __future__ import annotations

import ast
import copy
import warnings
from collections.abc import Callable

import pytest
import torch
from tests.layers import SOURCE, nodes
from torch import nn

import micronpu
from micronpu.frontend.tensors import copied

X = torch.randn(1, 8)


class Past(nn.Module):
    """A state that a call with gradients leaves with a history."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("past", torch.zeros(1, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.past = self.layer(x + self.past)
        return self.past


class Normed(nn.Module):
    """A weight that a hook computes before each call."""

    def __init__(self) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.layer = nn.utils.weight_norm(nn.Linear(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)  # type: ignore[no-any-return]


class Listed(nn.Module):
    """Tensors with a history in a list of the module's own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.seen = [{"last": self.layer.weight * 2}]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)  # type: ignore[no-any-return]


def _called(model: nn.Module) -> nn.Module:
    model.eval()(X)
    return model


@pytest.mark.parametrize("kind", [Past, Normed, Listed])
def test_a_copy_computes_the_same_and_leaves_the_model_alone(kind: Callable[[], nn.Module]) -> None:
    model = _called(kind())
    histories = {name: value.grad_fn for name, value in model.named_buffers()}
    with pytest.raises(RuntimeError, match="deepcopy"):
        copy.deepcopy(model)
    made = copied(model)
    with torch.no_grad():
        assert torch.equal(made(X), copied(model)(X))
    assert {name: value.grad_fn for name, value in model.named_buffers()} == histories
    assert not {id(p) for p in made.parameters()} & {id(p) for p in model.parameters()}


def test_tensors_that_share_memory_still_do_in_the_copy() -> None:
    base = torch.ones(4, requires_grad=True) * 2
    first, second = copied([base, base[:2]])
    with torch.no_grad():
        first[0] = 7
    assert second.tolist() == [7, 2] and base.tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize("kind", [Normed, Listed])
def test_such_a_model_is_trained_with_its_quantization(kind: Callable[[], nn.Module]) -> None:
    def train(module: nn.Module) -> None:
        module(X).sum().backward()

    model = _called(kind())
    program = micronpu.compile(model, (X,), "ethos-u55-128", train=train, quantization="int8")
    assert program.report.delegated


def test_a_normed_weight_is_made_sparse() -> None:
    model, rows = _called(Normed()), [(torch.randn(1, 8),) for _ in range(16)]
    made = micronpu.sparsify(model, rows, "ethos-u85-256")
    with torch.no_grad():
        assert made.model(X).shape == (1, 8)


@pytest.mark.sweep
def test_modules_are_copied_by_one_function() -> None:
    """Graphs, quantizers and values within a copy have no history."""
    found = []
    for path in SOURCE.rglob("*.py"):
        for node in nodes(path):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("copy.deepcopy", "deepcopy"):
                what, rest = ast.unparse(node.args[0]), node.args[1:]
                if not (what.endswith((".graph", "quantizer")) or rest or "values" in what):
                    found.append(f"{path.name}:{node.lineno} {what}")
    assert not found, found
