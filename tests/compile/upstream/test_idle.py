"""Passes of ExecuTorch that have nothing to do are left out: where they have, they run, and the graph is the same."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from executorch.exir import to_edge
from executorch.exir.tracer import _default_decomposition_table
from torch import nn

import micronpu
import micronpu.partition.lower
from micronpu.upstream import idle
from micronpu.upstream.executorch import edge_config

Pair = tuple[torch.Tensor, ...]


class Computes(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.function(*inputs)  # type: ignore[no-any-return]


X, N = torch.randn(2, 3), torch.arange(6, dtype=torch.int32).reshape(2, 3)
PICTURE = torch.randn(1, 4, 6, 6).to(memory_format=torch.channels_last)
NEEDY: dict[str, tuple[Any, Pair, list[str]]] = {
    "a transposed matrix": (lambda x: x.t().relu(), (X,), []),  # torch takes it apart before
    "a view": (lambda x: x.view(3, 2).relu(), (X,), []),
    "a number": (lambda x: x * 2.5, (X,), ["ScalarToTensorPass", "RemoveMixedTypeOperators"]),
    "mixed types": (lambda x, n: x + n, (X, N), ["RemoveMixedTypeOperators"]),
    "a permuted picture": (lambda x: nn.functional.avg_pool2d(x, 2), (PICTURE,), ["LegalizePortableDimOrderPass"]),
    "nothing of all that": (torch.relu, (X,), []),
}
"""A function, its inputs, and the passes that have something to do."""


def ran(made: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Notes the names of the passes that run in spite of the guard."""
    call = idle.WhereNeeded.__call__

    def noted(self: idle.WhereNeeded, module: Any) -> Any:
        result = call(self, module)
        if result.graph_module is not module:
            made.append(str(getattr(self.made, "__name__", type(self.made).__name__)).rstrip("'>").rpartition(".")[2])
        return result

    monkeypatch.setattr(idle.WhereNeeded, "__call__", noted)


def program(function: Any, inputs: Pair, left_out: bool) -> tuple[bytes, str]:
    exported = torch.export.export(Computes(function).eval(), inputs)
    with idle.idle_passes_left_out() if left_out else contextlib.nullcontext():
        edge = to_edge(exported, compile_config=edge_config())
        graph = str(edge.exported_program().graph)
        return bytes(edge.to_executorch().buffer), graph


@pytest.mark.parametrize("name", NEEDY)
def test_what_has_work_runs_and_the_program_is_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, inputs, needed = NEEDY[name]
    expected = program(function, inputs, False)
    made: list[str] = []
    ran(made, monkeypatch)
    found = program(function, inputs, True)
    assert found == expected
    assert made == needed


def test_another_thread_lowers_as_ever() -> None:
    """With nothing left out: not even where the passes would do something else."""
    given = {name: (function, inputs) for name, (function, inputs, _) in NEEDY.items()}
    expected = {name: program(*each, False) for name, each in given.items()}
    with idle.graphs_left_unwritten(), idle.idle_passes_left_out(True), ThreadPoolExecutor(1) as pool:
        found = {
            name: pool.submit(program, function, inputs, False).result() for name, (function, inputs) in given.items()
        }
    assert found == expected


class Step(nn.Module):
    """A state, attention and a norm: what a core computes with, and what ExecuTorch gives a first value."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(16), nn.Linear(16, 16)
        self.register_buffer("last", torch.zeros(1, 4, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.linear(x)) + self.last
        self.last.copy_(y)
        return torch.softmax(y @ y.transpose(1, 2), -1) @ y


class Pictures(nn.Module):
    """Convolutions and an operator in float behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(72, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.erf(self.body(x) * 2) + 1


class Attention(nn.Module):
    """Reshapes, and tensors that are repeated: what a core's program is taken apart into without a trace."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.linear(x)).reshape(1, 4, 2, 8).transpose(1, 2)
        return torch.cat([torch.softmax(y @ y.transpose(2, 3), -1) @ y, y], 1)[:, 1:]


@pytest.mark.parametrize("model", [Step, Pictures, Attention])
def test_the_bytes_of_a_cores_program_are_the_same(model: type[nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(1, 3, 8, 8) if model is Pictures else torch.randn(1, 4, 16)

    def made() -> bytes:
        torch.manual_seed(3)
        return micronpu.compile(model().eval(), (x,), target="cortex-m55", calibration=[(x,)]).buffer

    taken: list[bool] = []
    take_apart = micronpu.partition.lower.take_apart
    monkeypatch.setattr(micronpu.partition.lower, "take_apart", lambda p: taken.append(take_apart(p)) or taken[-1])
    shorter = made()
    monkeypatch.setattr(micronpu.partition.lower, "idle_passes_left_out", lambda plain: contextlib.nullcontext())
    monkeypatch.setattr(micronpu.partition.lower, "take_apart", lambda program: False)
    monkeypatch.setattr(micronpu.partition.lower, "untraced", lambda module, rows: None)
    monkeypatch.setattr(micronpu.partition.lower, "graphs_left_unwritten", contextlib.nullcontext)
    monkeypatch.setattr(idle.WhereNeeded, "__call__", lambda self, module: self.made(module))
    monkeypatch.setattr(micronpu.partition.lower, "_Signature", micronpu.partition.lower.ExportGraphSignature)
    assert shorter == made()
    assert taken == [model is not Step]


def test_what_is_taken_apart_without_a_trace() -> None:
    """It is what torch's own trace leaves, and what has states, views or other operators is left to that."""

    def operators(made: Any) -> list[str]:
        return [f"{n.target} {n.args[1:]} {dict(n.kwargs)}" for n in made.graph.nodes if n.op == "call_function"]

    aten = torch.ops.aten
    plain = Computes(lambda x: aten.expand_copy(aten.reshape(x, [3, 1, 2]).relu(), [3, 4, 2]).relu())
    made, by_torch = (torch.export.export(plain, (X,)) for _ in range(2))
    idle.take_apart(made)
    assert made.run_decompositions({}) is made
    assert operators(made) == operators(by_torch.run_decompositions(_default_decomposition_table()))
    for model, x in (
        (Step(), torch.randn(1, 4, 16)),
        (Computes(lambda x: aten.reshape(x.t(), [6])), X),
        (nn.Linear(3, 4), X),
        (Computes(lambda x: (x, x.relu())), X),
        (Computes(lambda x: aten.reshape(x, [3, 2]).add_(1)), X),
        (Computes(lambda x: aten._unsafe_view(x, [3, 2])), X),
    ):
        exported = torch.export.export(model.eval(), (x,))
        before = operators(exported)
        idle.take_apart(exported)
        assert operators(exported) == before
        assert exported.run_decompositions({}) is not exported


def test_the_compiler_is_as_before_when_the_lowering_ends() -> None:
    import executorch.exir.program._program as compiler

    before = compiler._get_aten_to_edge_passes, compiler.LegalizePortableDimOrderPass
    with pytest.raises(ZeroDivisionError), idle.idle_passes_left_out():
        assert compiler._get_aten_to_edge_passes is not before[0]
        raise ZeroDivisionError
    assert (compiler._get_aten_to_edge_passes, compiler.LegalizePortableDimOrderPass) == before


def test_a_graph_that_was_left_unwritten_is_written_when_it_is_called() -> None:
    def module() -> torch.fx.GraphModule:
        graph = torch.fx.Graph()
        graph.output(graph.call_function(torch.neg, (graph.placeholder("x"),)))
        return torch.fx.GraphModule(nn.Module(), graph)

    recompile = torch.fx.GraphModule.recompile
    with pytest.raises(ZeroDivisionError), idle.graphs_left_unwritten():
        new, known = module(), module()
        assert "_code" not in vars(new) and "neg" in module().code and "neg" in str(module())
        with ThreadPoolExecutor(1) as others:
            assert "neg" in others.submit(module).result().code
        assert torch.equal(known(X), -X)
        for made in (new, known):
            next(n for n in made.graph.nodes if n.op == "call_function").target = torch.exp
            made.recompile()
        raise ZeroDivisionError
    assert torch.fx.GraphModule.recompile is recompile
    assert torch.equal(new(X), X.exp())
    assert torch.equal(known(X), X.exp())
    assert "exp" in new.code


def test_dynamo_can_follow_a_graph_that_was_left_unwritten() -> None:
    """It inlines `forward`, and would come to the function that writes it first."""
    graph = torch.fx.Graph()
    graph.output(graph.call_function(torch.neg, (graph.placeholder("x"),)))
    with idle.graphs_left_unwritten(), idle.graphs_left_unwritten():
        module = torch.fx.GraphModule(nn.Module(), graph)
        assert "_code" not in vars(module)
    exported = torch.export.export(module, (X,), strict=True)
    assert torch.equal(exported.module()(X), -X)


def test_what_a_plain_program_is_traced_for_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Orders of axes and shapes: the graph, with its handles and specs, is the one of the traces."""
    from executorch.exir.pass_base import ExportPass

    traces: list[str] = []
    call = ExportPass.call

    def noted(self: Any, module: Any) -> Any:
        traces.append(type(self).__name__)
        return call(self, module)

    monkeypatch.setattr(ExportPass, "call", noted)
    aten = torch.ops.aten

    def made(plain: bool) -> tuple[bytes, list[tuple[Any, ...]]]:
        function = Computes(lambda x: aten.expand_copy(aten.clone(x).relu(), [4, 2, 3]) + aten._to_copy(x))
        exported = torch.export.export(function, (X,))
        assert idle.take_apart(exported)
        with idle.idle_passes_left_out(plain):
            done = to_edge(exported, compile_config=edge_config()).to_executorch()
        nodes = done.exported_program().graph.nodes
        return bytes(done.buffer), [(str(n.target), n.meta.get("debug_handle"), str(n.meta["spec"])) for n in nodes]

    expected = made(False)
    assert {"MemoryFormatOpsPass", "ExportPass"} <= set(traces)
    traces.clear()
    found = made(True)
    assert not {"MemoryFormatOpsPass", "ExportPass"} & set(traces)
    assert found[0] == expected[0]
    assert [row[:2] for row in found[1]] == [row[:2] for row in expected[1]]


def test_a_transpose_that_is_left_is_found() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_function(torch.ops.aten.t.default, (x,))
    assert [idle._NEEDS["NormalizeTransposePass"](node) for node in (x, y)] == [False, True]
    assert [idle._NEEDS["ReplaceBrokenOpsWithFunctionalOpsPass"](node) for node in (x, y)] == [False, True]


def test_every_guard_is_of_a_pass_that_executorch_has() -> None:
    """A pass of another name would be run in silence, and all would be as slow as before."""
    import executorch.exir.program._program as compiler

    listed, _ = compiler._get_aten_to_edge_passes(edge_config())
    guarded = [idle._guarded(made) for made in listed]
    assert sum(isinstance(made, idle.WhereNeeded) for made in guarded) == len(idle._NEEDS)
