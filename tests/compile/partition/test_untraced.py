"""Programs that are written without a trace: those that `torch.export` makes, and only where nothing is in doubt."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from executorch.exir import to_edge
from torch import nn
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule

import micronpu
from micronpu.partition.untraced import untraced
from micronpu.upstream.executorch import edge_config

aten = torch.ops.aten
X, Y = torch.randn(2, 3), torch.randn(3)
Rows = tuple[torch.Tensor, ...]


def inner() -> GraphModule:
    """x -> (x * numbers, x + more), and an operator that nobody reads."""
    root, graph = nn.Module(), Graph()
    root.register_buffer("numbers", torch.arange(3.0))
    root.register_buffer("more", torch.ones(2, 3))
    x = graph.placeholder("x")
    product = graph.call_function(aten.mul.Tensor, (x, graph.get_attr("numbers")))
    graph.call_function(aten.neg.default, (product,))
    graph.output((product, graph.call_function(aten.add.Tensor, (x, graph.get_attr("more")), {"alpha": 2})))
    return GraphModule(root, graph)


def outer(called: nn.Module, relu: Any = aten.relu.default) -> GraphModule:
    """(x, y) -> both results of what it calls, one of them joined with y and its own buffer."""
    root, graph = nn.Module(), Graph()
    root.register_module("called", called)
    root.register_buffer("own", torch.full((3,), 0.5))
    x, y = graph.placeholder("x"), graph.placeholder("y")
    both = graph.call_module("called", (graph.call_function(relu, (x,)),))
    first, second = (graph.call_function(operator.getitem, (both, i)) for i in range(2))
    summed = graph.call_function(aten.add.Tensor, (graph.call_function(aten.mul.Tensor, (second, y)), first))
    graph.output((graph.call_function(aten.sub.Tensor, (summed, graph.get_attr("own"))), first))
    return _as_exported(GraphModule(root, graph), (X, Y))


def _as_exported(module: GraphModule, rows: Rows) -> GraphModule:
    """The graph with the trees of inputs and results that an exported module has."""

    class Takes(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x.relu() + y, y.relu()

    codegen = torch.export.export(Takes(), rows).module(check_guards=False).graph._codegen
    module.graph.set_codegen(codegen)
    module.recompile()
    return module


def said(program: ExportedProgram) -> tuple[Any, ...]:
    """Everything of a program but notes of where its operators come from."""
    program.graph.eliminate_dead_code()
    nodes = [
        (n.op, n.name, str(n.target), str(n.args), str(n.kwargs), str(n.meta.get("val")), n.meta.get("tensor_meta"))
        for n in program.graph.nodes
    ]
    call = program.module_call_graph[0]
    assert call.signature is not None
    return nodes, program.graph_signature, call.signature, list(program.state_dict), program.constants


def test_it_is_the_program_of_torch_export() -> None:
    module = outer(inner())
    program, by_torch = untraced(module, (X, Y)), torch.export.export(module, (X, Y))
    assert program is not None
    assert said(program) == said(by_torch)
    for mine, theirs in zip(program.module()(X, Y), by_torch.module()(X, Y), strict=True):
        assert torch.equal(mine, theirs)
    for name, tensor in by_torch.state_dict.items():
        assert torch.equal(program.state_dict[name], tensor)
    files = [bytes(to_edge(p, compile_config=edge_config()).to_executorch().buffer) for p in (program, by_torch)]
    assert files[0] == files[1]


def _with(change: Callable[[GraphModule], None]) -> GraphModule:
    module = outer(inner())
    change(module)
    return module


def _shared(module: GraphModule) -> None:
    module.register_buffer("again", module.get_buffer("own"))


def _unsaved(module: GraphModule) -> None:
    module.register_buffer("beside", torch.ones(1), persistent=False)


def _trained(module: GraphModule) -> None:
    module.weight = nn.Parameter(torch.ones(1))


def _plain_inputs(module: GraphModule) -> None:
    module.graph.set_codegen(torch.fx.graph.CodeGen())


def _by_position(module: GraphModule) -> None:
    node = next(n for n in module.graph.nodes if n.target is operator.getitem)
    node.args = (node.args[0], slice(0, 1))


DOUBTFUL: dict[str, Callable[[], nn.Module]] = {
    "no graph": lambda: nn.ReLU(),
    "a call of a module that is no graph": lambda: outer(nn.ReLU()),
    "an operator that writes into what it reads": lambda: outer(inner(), aten.relu_.default),
    "results whose shape nobody knows": lambda: outer(inner(), aten.nonzero.default),
    "a function of Python": lambda: outer(inner(), torch.relu),
    "a buffer of two names": lambda: _with(_shared),
    "a buffer that is not saved": lambda: _with(_unsaved),
    "a parameter": lambda: _with(_trained),
    "inputs in no tree": lambda: _with(_plain_inputs),
    "several results at once": lambda: _with(_by_position),
}


@pytest.mark.parametrize("name", DOUBTFUL)
def test_what_is_in_doubt_is_left_to_torch(name: str) -> None:
    assert untraced(DOUBTFUL[name](), (X, Y)) is None


def test_inputs_that_are_no_plain_tensors_are_left_to_torch() -> None:
    module = outer(inner())
    assert untraced(module, (X, nn.Parameter(Y))) is None
    assert untraced(module, (X, Y)) is not None


def test_the_part_of_a_core_is_not_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is exported between the quantized module and the program; else large networks take twice as long."""
    exports: list[object] = []
    export = torch.export.export
    monkeypatch.setattr(
        torch.export, "export", lambda module, *a, **k: exports.append(module) or export(module, *a, **k)
    )
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4)).eval()
    x = torch.randn(2, 8)
    micronpu.compile(model, (x,), target="cortex-m55", calibration=[(x,)])
    assert len(exports) == 1
