"""A table of a chip file with checked access to its fields."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from micronpu.base.errors import OptionError

_NAME = re.compile(r"[A-Za-z0-9][\w.+-]*", re.ASCII)
_NOT_IN_TEXT = re.compile(r'["\\$]|\*/')


@dataclass(frozen=True)
class ChipSection:
    """A table of a chip file.

    Attributes:
        where: the file, as errors name it.
        name: of the table, as errors name it; "" for the file itself.
        values: its fields.
    """

    where: str
    name: str
    values: Mapping[str, Any]

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def text(self, key: str) -> str:
        """Return a string.

        Raises:
            OptionError: it is missing, or something else (this method and all others).
        """
        return self._checked(key, str(self._field(key, str)))

    def optional_text(self, key: str) -> str:
        """A string, default ""."""
        return self.text(key) if key in self else ""

    def optional_texts(self, key: str) -> tuple[str, ...]:
        """A list of non-empty strings, default empty."""
        given = self._field(key, list) if key in self else []
        if not all(isinstance(g, str) and g for g in given):
            raise OptionError(
                f"`{key}` in the chip file {self.where} is {given!r}; it is a list of filled strings.",
                hint=f'{key} = ["..."]',
            )
        return tuple(self._checked("name" if key == "aliases" else key, g) for g in given)

    def _checked(self, key: str, text: str) -> str:
        """Check that a text is valid in the files generated for a board: C, CMake, linker scripts and Markdown."""
        allowed = _NAME.fullmatch(text) if key == "name" else text.isprintable() and not _NOT_IN_TEXT.search(text)
        if text and not allowed:
            what = "letters, digits and .+-_" if key == "name" else "one line without quotation marks, \\, $ and */"
            raise OptionError(f"`{key}` in the chip file {self.where} is {text!r}; it is {what}.", hint="another text")
        return text

    def integer(self, key: str) -> int:
        """A positive integer."""
        return int(self._field(key, int))

    def optional_integer(self, key: str) -> int | None:
        """A whole number, 0 or more; None if absent."""
        if key not in self.values:
            return None
        value = self.values[key]
        if type(value) is not int or not 0 <= value < 1 << 32:
            raise OptionError(
                f"`{key}` in the chip file {self.where} is {value!r}; it is a whole number of 32 bits.",
                hint=f"{key} = 0x48102000, or leave it out",
            )
        return value

    def number(self, key: str) -> float:
        """A positive number."""
        return float(self._field(key, (int, float)))

    def optional_number(self, key: str) -> float | None:
        """A positive number; None if absent."""
        return self.number(key) if key in self else None

    def optional_numbers(self, key: str, count: int) -> tuple[float, ...] | None:
        """An increasing list of ``count`` non-negative numbers; None if absent."""
        if key not in self:
            return None
        given = self._field(key, list)
        numbers = [float(g) for g in given if isinstance(g, (int, float)) and not isinstance(g, bool)]
        rising = all(0 <= a <= b < math.inf for a, b in itertools.pairwise([0.0, *numbers]))
        if len(numbers) != len(given) or len(given) != count or not rising:
            raise OptionError(
                f"`{key}` in the chip file {self.where} is {given!r}; it is {count} numbers that rise.",
                hint=f"{key} = [{', '.join(['1', '2', '3'][:count])}]",
            )
        return tuple(numbers)

    def flag(self, key: str) -> bool:
        """A truth value, default False."""
        value = self.values.get(key, False)
        if not isinstance(value, bool):
            raise OptionError(
                f"`{key}` in the chip file {self.where} is {value!r}; it is true or false.", hint=f"{key} = true"
            )
        return value

    def table(self, key: str) -> ChipSection:
        """A table, ``[key]`` in TOML."""
        return ChipSection(self.where, key, self._field(key, dict))

    def tables(self, key: str) -> tuple[ChipSection, ...]:
        """A list of tables, ``[[key]]`` in TOML."""
        given = self._field(key, list)
        if not all(isinstance(g, dict) for g in given):
            raise OptionError(
                f"`{key}` in the chip file {self.where} is {given!r}; it is a list of tables.", hint=f"[[{key}]]"
            )
        return tuple(ChipSection(self.where, f"{key} {g.get('name', '')}".strip(), g) for g in given)

    def refuse_others(self, known: Collection[str]) -> None:
        """Refuse unknown fields, so that a typo does not silently select a default.

        Raises:
            OptionError: there is one; the message lists the known fields.
        """
        for key in self.values:
            if key not in known:
                raise OptionError(
                    f"The {self.name} in the chip file {self.where} has the field `{key}`, which there is not.",
                    hint=f"one of {', '.join(known)}",
                )

    def _field(self, key: str, kind: type | tuple[type, ...]) -> Any:
        if key not in self.values:
            hint = f"add a table [{key}]" if kind is dict else f"add a table [[{key}]]" if kind is list else ""
            beside = ", ".join(f"`{name}`" for name in self.values)
            hint = hint or f"add `{key} = ...`" + (f" beside {beside}" if beside else "")
            raise OptionError(f"The chip file {self.where} has no `{key}`.", hint=hint)
        value = self.values[key]
        if not isinstance(value, kind) or isinstance(value, bool):
            raise OptionError(
                f"`{key}` in the chip file {self.where} is {value!r}, which is not of the expected type.",
                hint="docs/chips.md, which shows each field",
            )
        if isinstance(value, (int, float)) and not 0 < value < math.inf:
            raise OptionError(
                f"`{key}` in the chip file {self.where} is {value}; it must be positive.", hint="a number above 0"
            )
        return value
