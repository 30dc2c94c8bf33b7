"""Edit numbers in the text of a chip file; comments, order and the rest are unchanged."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from micronpu.base.errors import OptionError

Place = tuple[str, str, str]
"""Table such as "npu" or "memory", name of the entry if there are several or "", and field."""

_HEAD = re.compile(r"\s*(\[\[?)\s*([\w-]+)\s*\]\]?\s*(?:#.*)?$")
_NAME = re.compile(r"""\s*name\s*=\s*["']([^"']*)["']""")
_FIELD = re.compile(r"(\s*)([\w-]+)(\s*=\s*)(.*)$")


def with_numbers(text: str, changes: Mapping[Place, float | Sequence[float]], why: str) -> str:
    """Return the text of a chip file with changed numbers, and the reason as a comment; a missing field is inserted."""
    lines = text.splitlines()
    for (table, name, field), value in changes.items():
        begin, end = _table(lines, table, name)
        written = f"{field} = {_text(value)}  # {why}"
        at = next((i for i in range(begin + 1, end) if (m := _FIELD.match(lines[i])) and m[2] == field), None)
        if at is None:
            last = next(i for i in range(end - 1, begin - 1, -1) if lines[i].strip())
            lines.insert(last + 1, written)
        else:
            lines[at] = f"{written}{_earlier(lines[at], why)}"
    return "\n".join(lines) + "\n"


def _table(lines: Sequence[str], table: str, name: str) -> tuple[int, int]:
    """Line numbers of the table's head, and of the line after its last."""
    heads = [i for i, line in enumerate(lines) if _HEAD.match(line)]
    for begin, end in zip(heads, [*heads[1:], len(lines)], strict=True):
        head = _HEAD.match(lines[begin])
        assert head is not None
        names = [m[1] for line in lines[begin + 1 : end] if (m := _NAME.match(line))]
        if head[2] == table and (not name or name in names):
            return begin, end
    what = f"[[{table}]] of the name {name!r}" if name else f"[{table}]"
    raise OptionError(f"The chip file has no table {what}.", hint="write one, as docs/chips.md shows")


def _earlier(line: str, why: str) -> str:
    _, found, comment = line.partition("#")
    comment = comment.strip()
    return f"; before: {comment}" if found and comment and not comment.startswith(why[:12]) else ""


def _text(value: float | Sequence[float]) -> str:
    if not isinstance(value, (int, float)):
        return f"[{', '.join(map(_text, value))}]"
    return f"{value / 1e9:.4g}e9" if value >= 1e7 else f"{value:.4g}"
