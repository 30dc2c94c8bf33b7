"""The inside of a payload as values: its operations and their order, or its commands."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Pairs = tuple[tuple[str, str], ...]
Made = tuple[int, int]
"""Number of an operation and of its output; -1 - i with 0 stands for argument i of the delegate call."""


@dataclass(frozen=True)
class InsideStep:
    """An operation.

    Attributes:
        label: what it computes.
        reads: what makes its operands, constants left out.
        attributes: names and texts.
        outputs: of each output, names and texts.
        operator: number of the traced operator that it is of, or -1 where it is not known.
        tensor: name of its result in the integer graph, or "".
    """

    label: str
    reads: tuple[Made, ...] = ()
    attributes: Pairs = ()
    outputs: tuple[Pairs, ...] = ()
    operator: int = -1
    tensor: str = ""


@dataclass(frozen=True)
class Inside:
    """What a delegate call computes.

    Attributes:
        steps: in order.
        results: for each result of the call what makes it; empty where that is not known.
        stopped: why there are no more steps, or "".
    """

    steps: tuple[InsideStep, ...]
    results: tuple[tuple[Made, ...], ...] = ()
    stopped: str = ""


class Disassembly(Protocol):
    """The commands of a payload."""

    @property
    def accelerator(self) -> str:
        """What it was made for."""

    @property
    def steps(self) -> Sequence[Any]:
        """Operations in order."""

    def lines(self, registers: bool = False) -> Iterable[str]:
        """The text, a line for each operation; with ``registers`` also the commands that set it up."""

    def memory_lines(self) -> Iterable[str]:
        """What lies where in memory while it runs."""

    def to_dict(self) -> dict[str, Any]:
        """The same as data for JSON."""


def shape_text(dtype: str, shape: Iterable[int]) -> str:
    """``int8[1, 12]``."""
    return f"{dtype}[{', '.join(map(str, shape))}]"


def difference(a: Disassembly, b: Disassembly, registers: bool = False) -> list[str]:
    """What differs between two payloads, as a unified diff of their lines; empty where nothing does."""
    first, second = (list(d.lines(registers)) for d in (a, b))
    return list(difflib.unified_diff(first, second, "a", "b", lineterm="", n=1))
