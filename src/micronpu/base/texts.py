"""Formats of words and numbers in reports."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

NOTHING = "–"


def plural(count: int, noun: str) -> str:
    """``1 partition``, ``2 partitions``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def affine(scale: float, zero_point: int | None, form: str = "g") -> str:
    """Return the number that an integer q represents: ``0.5 * (q - 3)``, or ``0.5 * (q + 128)``."""
    return f"{scale:{form}} * (q {'+' if (zero_point or 0) < 0 else '-'} {abs(zero_point or 0)})"


def inside(name: str) -> str:
    """Return the name of a program within a sentence: ``the program`` for ``The program``."""
    return f"the {name[4:]}" if name.startswith("The ") else name


def shape_text(shape: Iterable[int]) -> str:
    """``1×49×10×1``; a dash for a scalar and for a value that is no tensor."""
    return "×".join(map(str, shape)) or NOTHING


def short_source(source: str) -> str:
    """Return ``file:line`` relative to the current folder if it is below it."""
    path, colon, line = source.rpartition(":")
    try:
        return f"{Path(path).relative_to(Path.cwd())}{colon}{line}"
    except ValueError:
        return source


def file_name(source: str) -> str:
    """Return ``file:line`` without folders."""
    return Path(source).name


def sentence(text: str) -> str:
    """Return the text with a full stop at its end."""
    return text if text.endswith((".", "?", "!")) else f"{text}."
