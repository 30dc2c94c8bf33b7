"""Options with a list: ``--budget ms=5,sram=256K``, ``--quantization int16,equalize``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from micronpu.base.errors import OptionError


def entries(texts: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Split the values of an option at their commas into words and pairs ``name=value``."""
    words: list[str] = []
    pairs: dict[str, str] = {}
    for part in (part.strip() for text in texts for part in text.split(",") if part.strip()):
        name, equals, value = part.partition("=")
        if equals:
            pairs[name.strip().replace("-", "_")] = value.strip()
        else:
            words.append(part)
    return words, pairs


def value_of(text: str) -> bool | int | float | str:
    """Return the value of a text: true, false, a number, or the text itself."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    kinds: tuple[Callable[[str], int | float], ...] = (int, float)
    for kind in kinds:
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def only_one(flag: str, words: Sequence[str], hint: str) -> str | None:
    """Return the only word of a list, or None.

    Raises:
        OptionError: there are several.
    """
    if len(words) > 1:
        raise OptionError(f"{flag} has {len(words)} values: {', '.join(words)}.", hint=hint)
    return words[0] if words else None


def names_of(kind: type[Any]) -> tuple[str, ...]:
    """Return the names of a dataclass's fields."""
    return tuple(field.name for field in fields(kind))
