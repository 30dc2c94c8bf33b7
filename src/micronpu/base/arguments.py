"""Checks of the argument types of public calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from types import GenericAlias
from typing import Any, ParamSpec, TypeGuard, TypeVar

from micronpu.base.errors import ErrorsAs, OptionError

_PLAIN = (type(None), bool, int, float, str, bytes)
_LONGEST = 60

Class = TypeVar("Class")
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def described(given: Any) -> str:
    """Format a value for messages: plain values by content, others by type."""
    text = repr(given) if isinstance(given, _PLAIN) else ""
    if text and len(text) <= _LONGEST:
        return text
    return f"a {type(given).__name__} of length {len(given):,}" if text else f"of type {type(given).__name__}"


def is_class(given: object, of: type[Class] = object) -> TypeGuard[type[Class]]:  # type: ignore[assignment]
    """True if something is a class derived from another.

    `tuple[int, ...]` is not, although Python 3.10 considers it an instance of `type` (and `issubclass` raises).
    """
    return isinstance(given, type) and not isinstance(given, GenericAlias) and issubclass(given, of)


def check_switch(name: str, given: object) -> None:
    """Raise `OptionError` if a switch is neither True nor False."""
    if not isinstance(given, bool):
        raise OptionError(f"`{name}` is {described(given)}; it is True or False.", hint=f"{name}=True, or leave it out")


def check_text(name: str, given: object, what: str = "a string") -> None:
    """Raise `OptionError` if an argument is not a string, with its description."""
    if not isinstance(given, str):
        raise OptionError(f"`{name}` is {described(given)}; it is {what}.", hint=f"{name} as {what}")


def check_bytes(name: str, given: object) -> None:
    """Raise `OptionError` if an argument is not bytes."""
    if not isinstance(given, (bytes, bytearray, memoryview)):
        hint = "the content of a file, open(path, 'rb').read()"
        raise OptionError(f"`{name}` is {described(given)}; it is bytes.", hint=hint)


def check_type(name: str, given: object, *kinds: type, hint: str = "") -> None:
    """Raise `OptionError` if an argument has none of these types; True is not an int."""
    if not isinstance(given, kinds) or (isinstance(given, bool) and bool not in kinds):
        names = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
        raise OptionError(f"`{name}` is {described(given)}, not {names}.", hint=hint)


def items(name: str, given: object, what: str = "") -> tuple[Any, ...]:
    """Return the items of a list, a tuple, a set or an iterator; raise `OptionError` for anything else."""
    wrong = OptionError(
        f"`{name}` is {described(given)}; it is a list{f' of {what}' if what else ''}.", hint=f"{name}=[...]"
    )
    if isinstance(given, (str, bytes, bytearray, memoryview)) or not isinstance(given, (Sequence, Set, Iterator)):
        raise wrong
    with ErrorsAs(lambda _: wrong):
        return tuple(given)


def strings(name: str, given: object) -> tuple[str, ...]:
    """Return the value of an option that is a list of strings.

    Raises:
        OptionError: it is something else; a set has no order, and equal options must give equal bytes.
    """
    if isinstance(given, Set):
        raise OptionError(f"`{name}` is {described(given)}; it is a list of strings.", hint=f'{name}=["..."]')
    found = items(name, given, "strings")
    if not all(isinstance(item, str) for item in found):
        raise OptionError(
            f"`{name}` holds {described(next(i for i in found if not isinstance(i, str)))}; it is a list of strings.",
            hint=f'{name}=["..."]',
        )
    return found
