"""Sections of docstrings, which `help()` shows as they are indented."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
from tests.layers import SOURCE, nodes

_SECTIONS = re.compile(r"(Args|Attributes|Raises|Returns|Yields):$")
_ENTRY = re.compile(r"(\w+): ")


def names_of(node: ast.AST) -> set[str]:
    """Return what a section of a node can have an entry for: parameters, fields, names of errors."""
    names = {a.arg for f in ast.walk(node) if isinstance(f, ast.arguments) for a in (*f.args, *f.kwonlyargs)}
    fields = [f.target for f in ast.walk(node) if isinstance(f, ast.AnnAssign)]
    return names | {f.id for f in fields if isinstance(f, ast.Name)}


def misplaced(docstring: str, names: set[str]) -> Iterator[str]:
    """Yield the headings and entries of a docstring that are indented under the entry above them."""
    entries = -1  # indentation of the entries of the section, which begins at the margin
    for line in docstring.splitlines():
        text = line.lstrip()
        indent = len(line) - len(text)
        if _SECTIONS.match(text):
            entries = 4
            if indent:
                yield text
        elif text and not indent:
            entries = -1
        elif indent > entries >= 0 and (match := _ENTRY.match(text)) and (match[1] in names or "Error" in match[1]):
            yield text


def test_entries_stand_side_by_side() -> None:
    wrong = []
    for path in SOURCE.rglob("*.py"):
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and (text := ast.get_docstring(node)):
                wrong += [f"{path.relative_to(SOURCE)} {node.name}: {line}" for line in misplaced(text, names_of(node))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Do it.\n\nArgs:\n    x: one.\n    y: other.", []),
        ("Do it.\n\nArgs:\n    x: one, of which\n        y: other.", ["y: other."]),
        ("Do it.\n\nReturns:\n    One.\n\n    Raises:\n        OSError: no file.", ["Raises:", "OSError: no file."]),
        ("Do it.\n\nArgs:\n    x: one of\n        z: nothing with that name.", []),
    ],
)
def test_the_test_sees_entries_under_others(text: str, found: list[str]) -> None:
    assert list(misplaced(text, {"x", "y"})) == found
