"""What stages say to each other in torch's `meta` is declared in one place."""

from __future__ import annotations

import ast
from types import SimpleNamespace

from tests.layers import SOURCE, nodes

from micronpu.frontend import facts
from micronpu.frontend.facts import Fact

OF_A_TYPE_OF_THEIR_OWN = {
    "frontend/tensors.py": "the states of a module, a record that is declared there, and a count of names",
}
"""Files with a key of ours that is no `Fact`, with the reason."""


def test_a_fact_is_said_and_taken() -> None:
    fact: Fact[int] = Fact("micronpu_test", 0)
    node = SimpleNamespace(meta={})
    assert fact.of(node) == 0 and not fact.is_said(node)
    fact.say(node, 3)
    assert (fact.of(node), fact.is_said(node), node.meta) == (3, True, {"micronpu_test": 3})
    assert fact.take(node) == 3 and fact.take(node) == 0 and node.meta == {}


def test_every_key_is_declared_once() -> None:
    declared = [value.key for value in vars(facts).values() if isinstance(value, Fact)]
    assert len(declared) >= 12 and len(set(declared)) == len(declared)
    wrong = []
    for path in SOURCE.rglob("*.py"):
        name = path.relative_to(SOURCE).as_posix()
        if name == "frontend/facts.py" or name in OF_A_TYPE_OF_THEIR_OWN:
            continue
        for node in nodes(path):
            if isinstance(node, ast.Constant) and node.value in declared:
                wrong.append(f"{name}:{node.lineno} {node.value}")
            key = node.slice if isinstance(node, ast.Subscript) and _is_meta(node.value) else None
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _is_meta(node.func.value):
                key = node.args[0] if node.args else None
            if isinstance(key, ast.Constant) and str(key.value).startswith("micronpu"):
                wrong.append(f"{name}:{node.lineno} {key.value}")
    assert not wrong, wrong


def _is_meta(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "meta"
