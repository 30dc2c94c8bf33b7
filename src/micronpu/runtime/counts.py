"""Track positions that a program counts itself across calls, to refuse sequences that are too long."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from micronpu.base.errors import ModelError
from micronpu.program.io import counts_of, states_of
from micronpu.program.plan import read_plan

_KINDS = ("int32", "int64")


@dataclass(frozen=True)
class _Count:
    """Use of a state by a method, see `micronpu.frontend.positions.Count`; all that share it have the same place."""

    place: tuple[int, int]
    name: str
    size: int | None
    counts: bool
    step: int | None


class Counts:
    """Upper bounds of the positions in the states of a program's loaded methods."""

    def __init__(self, data: bytes, methods: Iterable[str], named_data: Mapping[str, bytes]) -> None:
        self._rules: dict[str, list[_Count]] = {}
        self._first: dict[tuple[int, int], int] = {}
        for method in methods:
            rows = counts_of(named_data, method)
            if not rows:
                continue
            states = states_of(read_plan(data, method=method)[0], dict(named_data))
            for number, size, counts, step in rows:
                if 0 <= number < len(states) and states[number].dtype in _KINDS and states[number].bytes:
                    state = states[number]
                    place, width = (state.memory, state.offset), 4 if state.dtype == "int32" else 8
                    numbers = memoryview(state.initial).cast("i" if width == 4 else "q")
                    self._first[place] = max(numbers)
                    self._rules.setdefault(method, []).append(_Count(place, state.name, size, counts, step))
        self._now: dict[tuple[int, int], int | None] = dict(self._first)

    def reset(self) -> None:
        """Return to the initial positions, like the states."""
        self._now = dict(self._first)

    def check(self, method: str, name: str) -> None:
        """Refuse a call that would read or write rows out of range, since a sequence is longer than the capacity of a
        state."""
        for rule in self._rules.get(method, ()):
            now = self._now[rule.place]
            if rule.size is not None and now is not None and now >= rule.size:
                raise ModelError(
                    f"The sequence is longer than {name} has room for: `{rule.name}` is at {now}, and the method "
                    f"{method} begins at {rule.size - 1} at most.",
                    hint="reset() and a new sequence, or a model with a longer cache",
                )

    def called(self, method: str) -> None:
        for rule in self._rules.get(method, ()):
            now = self._now[rule.place]
            if rule.step is None or (rule.counts and now is None):
                self._now[rule.place] = None
            else:
                self._now[rule.place] = rule.step + (now or 0) if rule.counts else rule.step
