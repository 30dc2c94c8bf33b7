"""One evaluator of torch graphs, which frees, remembers and computes no more than it is asked for."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from tests.layers import SOURCE, nodes
from torch.fx import Graph, GraphModule, Node

from micronpu.base.errors import InternalError
from micronpu.frontend.run import Run, Step, called, copying_step, evaluate, step_of

EVALUATORS = {
    "frontend/run.py": "the one",
    "quantize/float64.py": "writes another function into a node, which calls the former one in float32",
}


def own_evaluators(code: ast.AST) -> Iterator[str]:
    """Classes that are interpreters of torch graphs, and calls of what nodes call: `node.target(...)`."""
    every = list(ast.walk(code))
    named = {
        ast.unparse(target)
        for node in every
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Attribute)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if node.value.attr == "target" and isinstance(target, ast.Name)
    }
    for node in every:
        if isinstance(node, ast.ClassDef) and any(ast.unparse(b).endswith("Interpreter") for b in node.bases):
            yield node.name
        if isinstance(node, ast.Call):
            of = node.func
            if (isinstance(of, ast.Attribute) and of.attr == "target") or (isinstance(of, ast.Name) and of.id in named):
                yield ast.unparse(node)


def test_nothing_else_evaluates_graphs() -> None:
    found = {
        str(path.relative_to(SOURCE)): [text for node in nodes(path)[:1] for text in own_evaluators(node)]
        for path in SOURCE.rglob("*.py")
    }
    assert {path: texts for path, texts in found.items() if texts and path not in EVALUATORS} == {}


@pytest.mark.parametrize(
    "text",
    [
        "class A(torch.fx.Interpreter): pass",
        "class A(Interpreter): pass",
        "y = node.target(*args)",
        "target: Any = node.target\ny = target(*args)",
    ],
)
def test_another_evaluator_is_seen(text: str) -> None:
    assert list(own_evaluators(ast.parse(text)))


aten = torch.ops.aten


def graph() -> tuple[GraphModule, dict[str, Node]]:
    """w -> twice -> add(x) -> relu -> out, and neg(x), which nothing reads."""
    of = Graph()
    x, w = of.placeholder("x"), of.get_attr("w")
    twice = of.call_function(aten.mul.Tensor, (w, 2.0))
    neg = of.call_function(aten.neg.default, (x,))
    add = of.call_function(aten.add.Tensor, (x, twice))
    relu = of.call_function(aten.relu.default, (add,))
    of.output((relu,))
    root = torch.nn.Module()
    root.w = torch.nn.Parameter(torch.tensor([1.0, -4.0]))
    return GraphModule(root, of), dict(x=x, w=w, twice=twice, neg=neg, add=add, relu=relu)


X = torch.tensor([1.0, 2.0])


def noted(module: GraphModule, order: list[str], node: Node) -> Step:
    step = step_of(module, node)

    def noting(values: Mapping[Node, Any]) -> Any:
        order.append(node.name.partition("_")[0])
        return step(values)

    return noting


def test_the_results_are_those_of_a_call_and_values_are_freed() -> None:
    module, by = graph()
    run, alive, values = Run(module), {}, dict[Node, Any]()
    assert torch.equal(run.run(X)[0], module(X)[0])
    for node in run.each(values, X):
        alive[node] = set(values)
    assert by["add"] in alive[by["relu"]] and by["twice"] not in alive[by["relu"]]
    assert by["x"] in alive[by["add"]] and by["add"] not in values


def test_only_what_is_wanted_and_not_known_is_computed() -> None:
    module, by = graph()
    order: list[str] = []
    run = Run(module, functools.partial(noted, module, order), wanted=[by["relu"]], known=[by["twice"]])
    (found,) = run.values({by["twice"]: torch.tensor([-3.0, 3.0])}, X).values()
    assert order == ["add", "relu"] and torch.equal(found, torch.tensor([0.0, 5.0]))
    order.clear()
    Run(module, functools.partial(noted, module, order), wanted=[by["relu"]]).values({by["add"]: X}, X)
    assert order == ["w", "mul", "relu"], "a value that is known at last is not computed"


def test_constants_are_computed_once_and_late() -> None:
    module, by = graph()
    order: list[str] = []
    constants = [by["w"], by["twice"]]
    run = Run(module, functools.partial(noted, module, order), once=constants, late=[by["twice"]])
    assert torch.equal(run.run(X)[0], run.run(X)[0])
    assert order == ["w", "neg", "mul", "add", "relu", "output", "neg", "add", "relu", "output"]


def test_a_hook_sees_each_value_with_its_operands_and_replaces_it() -> None:
    module, by = graph()

    def behind(node: Node, value: Any, values: Mapping[Node, Any]) -> Any:
        assert all(n in values for n in node.all_input_nodes)
        return value + 1 if node is by["add"] else value

    assert torch.equal(Run(module).run(X, behind=behind)[0], torch.relu(X + 2 * module.w + 1))


def test_constants_have_values_and_inputs_have_none() -> None:
    module, by = graph()
    twice, numbers, text = evaluate(module, (by["twice"], [1, by["w"]], "same"))
    assert torch.equal(twice, torch.tensor([2.0, -8.0])) and not numbers[1].requires_grad
    assert (numbers[0], text) == (1, "same")
    with pytest.raises(InternalError, match="`x` is no constant"):
        evaluate(module, by["add"])


def test_what_is_written_into_is_copied() -> None:
    of = Graph()
    x = of.placeholder("x")
    relu = of.call_function(aten.relu_.default, (x,))
    of.output((relu,))
    module, given = GraphModule(torch.nn.Module(), of), torch.tensor([-1.0])
    for found in (called(relu, {x: given}), Run(module, functools.partial(copying_step, module)).run(given)[0]):
        assert found == 0.0 and given == -1.0
    assert Run(module).run(given)[0] is given
