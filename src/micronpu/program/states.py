"""States of a program: buffers in its planned memory that persist across calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

from micronpu.base.errors import PayloadError
from micronpu.base.parsing import parse_json
from micronpu.container.digest import PREFIX
from micronpu.program.plan import ELEMENT_BYTES, Plan, PlanValue

STATES_KEY = f"{PREFIX}states"
"""Named data that records the names and qparams of the states; not deployed to the board."""


class Known(Protocol):
    """State metadata from the compiler."""

    @property
    def name(self) -> str: ...
    @property
    def scale(self) -> float | None: ...
    @property
    def zero_point(self) -> int | None: ...


@dataclass(frozen=True)
class StoredState:
    """A state as stored in the file.

    Attributes:
        name: of the buffer in the model; "state_0" and so on if the file does not record it.
        memory: the planned memory (1 and up) that holds it.
        offset: its first byte there.
        initial: its bytes before the first call.
        scale, zero_point: ``real = scale * (integer - zero_point)``; None if it is not a quantized float.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    memory: int
    offset: int
    initial: bytes
    scale: float | None = None
    zero_point: int | None = None

    @property
    def bytes(self) -> int:
        return prod(self.shape) * ELEMENT_BYTES.get(self.dtype, 0)


def pack_states(states: Sequence[Known]) -> bytes:
    """Serialize the metadata of states as named data."""
    return json.dumps([[s.name, s.scale, s.zero_point] for s in states], separators=(",", ":")).encode()


def key_of(key: str, method: str) -> str:
    """Key of per-method named data in a program with several methods."""
    return f"{key}/{method}" if method else key


def states_of(plan: Plan, named_data: dict[str, bytes]) -> tuple[StoredState, ...]:
    """Return the states of a plan, in its order.

    Args:
        named_data: of the file before it is stripped.

    Raises:
        PayloadError: the recorded metadata is damaged.
    """
    found: dict[tuple[int, int], PlanValue] = {}
    for value in plan.values:
        if value.initial is not None:
            found.setdefault((value.planned, value.offset), value)  # a view has its base's offset
    variables = list(found.values())
    try:
        own = named_data.get(key_of(STATES_KEY, plan.name), named_data.get(STATES_KEY, b"[]"))
        rows = [_state_row(*row) for row in parse_json(own)]
    except (ValueError, TypeError, OverflowError) as error:
        raise PayloadError(
            "The description of its states in the program is damaged.", hint="compile the model again"
        ) from error
    if len(rows) != len(variables):
        rows = [(f"state_{i}", None, None) for i in range(len(variables))]
    return tuple(
        StoredState(n, v.tensor.dtype, v.tensor.shape, v.planned, v.offset, v.initial or b"", s, z)
        for v, (n, s, z) in zip(variables, rows, strict=True)
        if v.tensor is not None
    )


def _state_row(name: object, scale: float | None, zero_point: int | None) -> tuple[str, float | None, int | None]:
    return str(name), scale if scale is None else float(scale), zero_point if zero_point is None else int(zero_point)
