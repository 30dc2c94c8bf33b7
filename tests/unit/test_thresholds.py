"""Numbers by which quantization, verification and the compiler decide: one table in each package."""

from __future__ import annotations

import ast
import re

import pytest
from tests.layers import SOURCE, nodes, tree

PACKAGES = ("quantize", "verify", "compiler")
PLAIN = {
    **dict.fromkeys((0, 1, 2, 3, 0.5), "counts, axes, halves"),
    **dict.fromkeys((4, 7, 8, 16, 127, 128, 255, 256, 65535), "widths and limits of types, ranks of images"),
    **dict.fromkeys((6, 9, 10, 50, 100), "decimals, percentages, decibels, names in a message"),
    **dict.fromkeys((12, 23, 0.6931471805599453), "moments of distributions, bits of float32, log(2)"),
    1e-30: "a divisor that is not zero",
}
"""Numbers in functions that decide nothing, with what they are."""


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


def decisions(module: ast.AST) -> list[ast.Constant]:
    """The numbers anywhere in a module that are not among `PLAIN`."""
    numbers = (n for n in ast.walk(module) if isinstance(n, ast.Constant) and type(n.value) in (int, float))
    return [number for number in numbers if number.value not in PLAIN]


@pytest.mark.parametrize("package", PACKAGES)
def test_functions_decide_by_numbers_of_the_table(package: str) -> None:
    paths = [path for path in (SOURCE / package).rglob("*.py") if path.name != "thresholds.py"]
    wrong = [f"{path.relative_to(SOURCE)}:{n.lineno}: {n.value}" for path in paths for n in decisions(tree(path))]
    assert not wrong, wrong


def test_a_number_of_a_function_is_found() -> None:
    assert [n.value for n in decisions(ast.parse("def f(x, n=20): return x > 0.95 * n + 2"))] == [20, 0.95]


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
