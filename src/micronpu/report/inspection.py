"""Contents of a payload, as values that `micronpu inspect` prints."""

from __future__ import annotations

from dataclasses import dataclass


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
