"""Each dropout and batch norm of an exported module has a flag of its own."""

from __future__ import annotations

import pytest
import torch
from torch.fx import Graph, GraphModule

from micronpu.frontend.checks import is_dropout, is_in_training, set_training
from micronpu.frontend.program import arguments, calls_into
from micronpu.ops.movement import DROPOUTS

NORM = "batch_norm.default"


def module(overload: str, training: bool, *, with_statistics: bool = True) -> GraphModule:
    """A module of one operator."""
    graph = Graph()
    x = graph.placeholder("x")
    if overload in DROPOUTS:
        y = calls_into(graph)(overload, x, 0.5, training)
    elif overload == NORM:
        known = [graph.get_attr(name) if with_statistics else None for name in ("mean", "variance")]
        y = calls_into(graph)(overload, x, None, None, *known, training, 0.1, 1e-5, False)
    else:
        y = calls_into(graph)(overload, x)
    graph.output(y)
    root = torch.nn.Module()
    root.register_buffer("mean", torch.zeros(3))
    root.register_buffer("variance", torch.ones(3))
    return GraphModule(root, graph)


@pytest.mark.parametrize("overload", [*DROPOUTS, NORM])
@pytest.mark.parametrize("training", [True, False])
def test_a_flag_is_read_and_set(overload: str, training: bool) -> None:
    model = module(overload, training)
    node = next(n for n in model.graph.nodes if n.op == "call_function")
    assert is_dropout(node) == (overload in DROPOUTS) and is_in_training(node) == training
    set_training(model, not training)
    assert is_in_training(node) != training
    kept = {"dropouts": False} if is_dropout(node) else {"batch_norms": False}
    set_training(model, training, **kept)
    assert is_in_training(node) != training


def test_a_norm_without_statistics_keeps_measuring() -> None:
    model = module(NORM, True, with_statistics=False)
    set_training(model, False)
    (node,) = (n for n in model.graph.nodes if n.op == "call_function")
    assert arguments(node)["training"] is True


def test_other_operators_have_no_flag() -> None:
    model = module("relu.default", True)
    set_training(model, True)
    (node,) = (n for n in model.graph.nodes if n.op == "call_function")
    assert not is_in_training(node) and not is_dropout(node) and node.args == (node.all_input_nodes[0],)
