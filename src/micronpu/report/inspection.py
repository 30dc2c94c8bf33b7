"""What is in a payload, as values that `micronpu inspect` prints."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Section:
    """A part of a payload: its name, size in bytes, and what else is known of it."""

    name: str
    bytes: int
    detail: str = ""


@dataclass(frozen=True)
class Tensor:
    """An input or output: "input" or "output" with its number, shape, element type or size, and where it stands."""

    name: str
    shape: tuple[int, ...]
    element: str
    place: str = ""


@dataclass(frozen=True)
class Delegate:
    """A delegate call.

    Attributes:
        backend: name by which the runtime looks it up.
        bytes: size of the payload.
        kind: what the payload is made for, one clause.
        sections: its parts in order.
        tensors: inputs and outputs as the payload describes them.
        objection: why the payload cannot be read, or "".
    """

    backend: str
    bytes: int
    kind: str = ""
    sections: tuple[Section, ...] = ()
    tensors: tuple[Tensor, ...] = ()
    objection: str = ""
