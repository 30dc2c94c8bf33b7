"""Order of what is computed from each other, without recursion."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

_T = TypeVar("_T", bound=Hashable)


def reachable(starts: Iterable[_T], further: Callable[[_T], Iterable[_T]]) -> Iterator[_T]:
    """Yield values and all that is reached from them, each once; the last of several first."""
    seen, waiting = set[_T](), list(starts)
    while waiting:  # no recursion: a chain of operators may be thousands long
        value = waiting.pop()
        if value not in seen:
            seen.add(value)
            yield value
            waiting += further(value)


def operands_first(result: _T, operands_of: Callable[[_T], Iterable[_T]]) -> Iterator[_T]:
    """Yield all that a result is computed from, each once and behind its operands, and the result at the end.

    A model may have more successive operators than Python allows nested calls, and values that many others read.
    """
    seen = {result}
    waiting = [(result, iter(operands_of(result)))]
    while waiting:
        value, operands = waiting[-1]
        operand = next((x for x in operands if x not in seen), None)
        if operand is None:
            waiting.pop()
            yield value
        else:
            seen.add(operand)
            waiting.append((operand, iter(operands_of(operand))))
