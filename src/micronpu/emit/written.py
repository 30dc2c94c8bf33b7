"""A model in a standard format, and its relation to the graph."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WrittenModel:
    """A LiteRT or TOSA flatbuffer; `nodes` has the index of the graph's node for each operator, constants included."""

    data: bytes
    nodes: tuple[int, ...]
