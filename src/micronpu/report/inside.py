"""The inside of a payload as values: what `micronpu inspect` prints, and its commands in order."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from micronpu.base.parsing import JsonObject


class Disassembly(Protocol):
    """The commands of a payload."""

    @property
    def accelerator(self) -> str:
        """The NPU that it was made for."""

    @property
    def steps(self) -> Sequence[Any]:
        """Operations in order."""

    def lines(self, registers: bool = False) -> Iterable[str]:
        """The text, a line for each operation; with ``registers`` also the commands that set it up."""

    def memory_lines(self) -> Iterable[str]:
        """Return the use of memory during the run."""

    def to_dict(self) -> JsonObject:
        """The same as data for JSON."""


def difference(a: Disassembly, b: Disassembly, registers: bool = False) -> list[str]:
    """Return a unified diff of two payloads' lines; empty if they are equal."""
    first, second = (list(d.lines(registers)) for d in (a, b))
    return list(difflib.unified_diff(first, second, "a", "b", lineterm="", n=1))


@dataclass(frozen=True)
class Section:
    """A part of a payload: its name, size in bytes, and details."""

    name: str
    bytes: int
    detail: str = ""


@dataclass(frozen=True)
class Tensor:
    """An input or output: "input" or "output" with its number, shape, element type or size, and its place in memory."""

    name: str
    shape: tuple[int, ...]
    element: str
    place: str = ""


@dataclass(frozen=True)
class InspectedDelegate:
    """A delegate call.

    Attributes:
        backend: name by which the runtime looks it up.
        bytes: size of the payload.
        kind: target of the payload, one clause.
        sections: its parts in order.
        tensors: inputs and outputs as the payload describes them.
        objection: reason why the payload cannot be read, or "".
    """

    backend: str
    bytes: int
    kind: str = ""
    sections: tuple[Section, ...] = ()
    tensors: tuple[Tensor, ...] = ()
    objection: str = ""
