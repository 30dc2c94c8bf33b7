"""Names of the source use the terms of the glossary: words that were replaced do not come back."""

from __future__ import annotations

import re

from tests.layers import SOURCE

REPLACED = re.compile(
    r"\b_*(?:[A-Za-z0-9]+_)*(?:doors?|Door|DOORS?|told|TOLD|Told|unrounded|Unrounded|shaken|foresight|composes|Composition|"
    r"WAYS|joints|FAMILIES|add_way|IntegerBorders?|borders_of|on_grid|given_grid)\b(?!\s+(?:from|of|what|the|apart|whether))"
)


def test_replaced_words_do_not_come_back() -> None:
    code = re.compile(r"^\s*(?:class|def)\s+(\w+)|^\s*(\w+)(?:: [^=\n]+)? = ", re.MULTILINE)
    found = [
        (str(path.relative_to(SOURCE)), name)
        for path in sorted(SOURCE.rglob("*.py"))
        for match in code.finditer(path.read_text(encoding="utf-8"))
        if REPLACED.fullmatch(name := match[1] or match[2])
    ]
    assert not found, "use the terms of CONTRIBUTING.md"
