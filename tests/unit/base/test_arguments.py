"""What a class is, the same with every Python."""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path
from typing import ClassVar

from micronpu.base.arguments import is_class

SOURCE = Path(__file__).parents[3] / "src" / "micronpu"


def test_a_generic_type_is_no_class() -> None:
    """Python 3.10 takes `tuple[int, ...]` for an instance of `type`, and `issubclass` refuses it."""
    assert is_class(Enum) and is_class(bool, int)
    assert not any(map(is_class, (tuple[int, ...], ClassVar[int], "int", int | None, 1)))
    assert not is_class(str, int)


def test_nothing_asks_the_way_that_python_3_10_refuses() -> None:
    """Neither `isinstance(x, type) and issubclass(x, ..)` nor a bare `ClassVar`, which it cannot read as a type."""
    wrong = re.compile(r"isinstance\(\w+, type\) and (issubclass|\w+\.__|\w+ not in)|: ClassVar( =|$)", re.MULTILINE)
    found = [
        f"{path.relative_to(SOURCE)}: {match[0]}"
        for path in SOURCE.rglob("*.py")
        for match in wrong.finditer(path.read_text(encoding="utf-8"))
    ]
    assert not found, found
