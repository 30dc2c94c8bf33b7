"""Numbers by which quantization, verification and the compiler decide: one table in each package."""

from __future__ import annotations

import ast
import re

import pytest
from tests.layers import SOURCE, nodes, tree

PACKAGES = ("quantize", "verify", "compiler")


def is_number(value: ast.expr | None) -> bool:
    """Whether a value is a number, or has one among its elements."""
    if isinstance(value, ast.Tuple | ast.List | ast.Set):
        return any(map(is_number, value.elts))
    if isinstance(value, ast.Dict):
        return any(map(is_number, value.values))
    if isinstance(value, ast.BinOp):
        return is_number(value.left) or is_number(value.right)
    if isinstance(value, ast.UnaryOp):
        return is_number(value.operand)
    return isinstance(value, ast.Constant) and type(value.value) in (int, float)


def found(module: ast.Module) -> list[ast.stmt]:
    return [s for s in module.body if isinstance(s, ast.Assign | ast.AnnAssign) and is_number(s.value)]


@pytest.mark.parametrize("package", PACKAGES)
def test_numbers_are_in_the_table(package: str) -> None:
    numbers = {str(path.relative_to(SOURCE)): found(tree(path)) for path in (SOURCE / package).rglob("*.py")}
    assert numbers.pop(f"{package}/thresholds.py")
    assert not [name for name, here in numbers.items() if here]


@pytest.mark.parametrize("package", PACKAGES)
def test_each_number_has_a_unit_and_an_origin(package: str) -> None:
    table = SOURCE / package / "thresholds.py"
    lines = table.read_text("utf-8").splitlines()
    for statement in found(tree(table)):
        comment = [lines[statement.lineno - 1].partition("  # ")[2]]
        before = statement.lineno - 2
        while lines[before].startswith("# "):
            comment.insert(0, lines[before][2:])
            before -= 1
        assert re.search(r"[\w)`] \[[^;\]]+; [^\]]+\]$", " ".join(comment).strip()), lines[statement.lineno - 1]


@pytest.mark.parametrize("package", PACKAGES)
def test_each_number_decides_something(package: str) -> None:
    table = nodes(SOURCE / package / "thresholds.py")
    names = {node.id for node in table if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    files = [path for path in SOURCE.rglob("*.py") if path.name != "thresholds.py"]
    read = {getattr(node, "id", getattr(node, "attr", "")) for path in files for node in nodes(path)}
    assert names <= read, names - read


@pytest.mark.parametrize("text", ["_FAR = 1e3", "A, B = 4.0, 'x'", "A: int = 1 << 4", "A = {'int8': -1}", "A = 2**-3"])
def test_a_number_is_found(text: str) -> None:
    assert found(ast.parse(text)) and not found(ast.parse(text.replace("= ", "= f(") + ")"))
