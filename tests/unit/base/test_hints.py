"""Every error that a user meets says what to try."""

from __future__ import annotations

import ast

from tests.layers import SOURCE, nodes

from micronpu.base import errors
from micronpu.base.errors import MicroNpuError

ELSEWHERE = {
    "UnsupportedError": "of an operator, whose rule in the report has the hint",
    "InternalError": "a defect, with nothing to try",
    "WrongResultError": "a defect, with nothing to try",
    "NothingLeftError": "caught by the partitioner, and no user's",
}
"""Errors without a hint of their own, with the reason."""


def test_every_error_has_a_hint() -> None:
    kinds = {n for n, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, MicroNpuError)}
    assert kinds > set(ELSEWHERE)
    found: dict[str, list[int]] = {}
    for path in SOURCE.rglob("*.py"):
        for node in nodes(path):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            hinted = any(keyword.arg in ("hint", None) for keyword in node.keywords)
            if node.func.id in kinds - set(ELSEWHERE) and not hinted:
                found.setdefault(str(path.relative_to(SOURCE)), []).append(node.lineno)
    assert not found, found
