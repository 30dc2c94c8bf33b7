"""Inputs that determine the bytes of a program (model, data, options, tools, machine), and their differences."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields

from micronpu.report.texts import plural

WHOLE = ""
"""Key of a part that is known only by its digest."""
_MOST = 4
"""Maximum number of parts that a sentence names."""


@dataclass(frozen=True)
class Basis:
    """Inputs that determine the bytes of a program, each with its digest or value.

    Attributes:
        model: digests, the first 16 digits of a SHA-256 in hexadecimal: of the exported graph, of the example inputs,
            and of each weight by its name.
        data: digests of the calibration data, one per sample or block of samples in order.
        options: options of the compilation, value as JSON by name.
        tools: versions by name.
        machine: system, processor and its instructions, threads. Bytes depend on them only in quantization-aware
            training; see docs/stability.md.
    """

    model: Mapping[str, str] = field(default_factory=dict)
    data: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    tools: Mapping[str, str] = field(default_factory=dict)
    machine: Mapping[str, str] = field(default_factory=dict)

    def hashes(self) -> dict[str, str]:
        """Return the SHA-256 of each field in hexadecimal, by its name."""
        return {f.name: _digest(getattr(self, f.name)) for f in fields(self)}

    @classmethod
    def of_hashes(cls, hashes: Mapping[str, str]) -> Basis | None:
        """Return a basis from `hashes`: it shows whether two programs differ, but not in which part; None if one is
        missing."""
        names = [f.name for f in fields(cls)]
        if not all(name in hashes for name in names):
            return None
        return cls(**{name: {WHOLE: hashes[name]} for name in names})

    @property
    def is_whole(self) -> bool:
        """True if only its digests are known."""
        return set(self.model) == {WHOLE}


@dataclass(frozen=True)
class Cause:
    """An input that differs between two programs.

    Attributes:
        name: of the field of `Basis`.
        parts: names of its parts that differ; () if unknown.
        before, after: values of the parts, in their order; "" if there is no such part.
    """

    name: str
    parts: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name.capitalize()}: {self._what}."

    @property
    def _what(self) -> str:
        if not self.parts:
            return "another one, and a manifest of each would say where"
        entries = [_change(self.name, *values) for values in zip(self.parts, self.before, self.after, strict=True)]
        more = len(entries) - _MOST
        return ", ".join(entries[:_MOST]) + (f" and {plural(more, 'other part')}" if more > 0 else "")


def causes(before: Basis, after: Basis) -> tuple[Cause, ...]:
    """Return the differences between the bases of two programs, in the order of the fields."""
    return tuple(_causes(before, after))


def _causes(before: Basis, after: Basis) -> Iterator[Cause]:
    coarse = before.is_whole or after.is_whole
    for own in fields(Basis):
        first, second = getattr(before, own.name), getattr(after, own.name)
        if coarse:
            if _whole(first) != _whole(second):
                yield Cause(own.name)
            continue
        parts = [name for name in dict.fromkeys((*first, *second)) if first.get(name) != second.get(name)]
        if parts:
            values = [tuple(entries.get(name, "") for name in parts) for entries in (first, second)]
            yield Cause(own.name, tuple(parts), *values)


def _whole(entries: Mapping[str, str]) -> str:
    return entries[WHOLE] if set(entries) == {WHOLE} else _digest(entries)


def _digest(entries: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()


def _change(name: str, part: str, before: str, after: str) -> str:
    """Return the text for a part that differs; digests are not shown."""
    if name in ("model", "data"):
        return f"{part} ({'new' if not before else 'gone' if not after else 'changed'})"
    return f"{part} {before or 'not there'} -> {after or 'not there'}"
