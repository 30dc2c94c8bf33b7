"""ATen overloads that are named outside of `ops/`, where all that is known about operators belongs."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

import torch
from tests.layers import SOURCE, nodes

MOST = {"quantize": 2}
"""Of the only package that names some; the number only ever becomes smaller."""


def names(tree: list[ast.AST]) -> Iterator[str]:
    """The overloads that a file reads; those that it writes into a program, as in ``write("add.Tensor", x, y)``, are
    left out."""
    written = {
        argument
        for node in tree
        if isinstance(node, ast.Call) and "write" in ast.unparse(node.func)
        for argument in node.args
    }
    for node in tree:
        text = node.value if isinstance(node, ast.Constant) and node not in written else ""
        if isinstance(node, ast.Attribute):
            text = ast.unparse(node).removeprefix("torch.ops.").partition("aten.")[2]
        packet, _, overload = text.partition(".") if isinstance(text, str) else ("", "", "")
        if packet.isidentifier() and overload.isidentifier():
            found = getattr(torch.ops.aten, packet, None)
            if found is not None and overload in found.overloads():
                yield text


def test_overloads_are_named_in_ops() -> None:
    found: Counter[str] = Counter()
    for path in SOURCE.rglob("*.py"):
        package = path.relative_to(SOURCE).parts[0]
        if package != "ops":
            found[package] += sum(1 for _ in names(list(nodes(path))))
    assert not {package: number for package, number in found.items() if number > MOST.get(package, 0)}
