"""ATen overloads that are named outside of `ops/`, where all that is known about operators belongs."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import torch
from tests.layers import SOURCE, nodes


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


def test_overloads_are_named_in_ops_alone() -> None:
    files = [path for path in SOURCE.rglob("*.py") if path.relative_to(SOURCE).parts[0] != "ops"]
    found = {str(path.relative_to(SOURCE)): named for path in files if (named := [*names(list(nodes(path)))])}
    assert not found, found


def test_what_is_found() -> None:
    source = 'f("mul.Tensor"); torch.ops.aten.t.default; "no.overload"; write("add.Tensor", x)'
    assert sorted(names(list(ast.walk(ast.parse(source))))) == ["mul.Tensor", "t.default"]
