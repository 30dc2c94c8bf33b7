"""JSON and TOML that somebody else wrote: read, or refused as a `ValueError`, whatever they hold."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

_LARGE = "an integer has more than 64 bits"
DEEPEST = 100
"""Lists and tables in one another; what is handed on is taken apart by functions that call themselves."""
_LEAST, _MOST = -(1 << 63), (1 << 64) - 1
"""Of an integer: nothing of ours has larger ones, which neither a float nor an array takes."""


def parse_json(text: str | bytes) -> Any:
    """The value.

    Raises:
        ValueError: it is no JSON, or nested too deeply, or has an integer of more than 64 bits.
    """
    return _parsed(json.loads, text)


def parse_toml(text: str) -> dict[str, Any]:
    """The table.

    Raises:
        ValueError: as for `parse_json`.
    """
    # `tomllib` is of Python 3.11; `tomli`, which it was made of, is installed before that.
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    found: dict[str, Any] = _parsed(tomllib.loads, text)
    return found


def _parsed(parse: Callable[[Any], Any], text: str | bytes) -> Any:
    try:
        found = parse(text)
    except RecursionError:
        raise ValueError("lists or tables are nested too deeply") from None
    except ValueError as error:
        if "integer string conversion" in str(error):  # Python's limit of digits, whose sentence names its functions
            raise ValueError(_LARGE) from None
        raise
    level = [found]
    for _ in range(DEEPEST):
        if any(type(value) is int and not _LEAST <= value <= _MOST for value in level):
            raise ValueError(_LARGE)
        level = [inner for value in level for inner in _inside(value)]
        if not level:
            return found
    raise ValueError("lists or tables are nested too deeply")


def _inside(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


_HEAD_BYTES = 8


def with_head(head: Any, *parts: bytes | memoryview) -> bytes:
    """Bytes behind a head that JSON can say: the length of the head, the head, and the parts."""
    text = json.dumps(head).encode()
    return b"".join((len(text).to_bytes(_HEAD_BYTES, "little"), text, *parts))


def head_and_rest(data: bytes | memoryview) -> tuple[Any, memoryview]:
    """What `with_head` was given: the head, and the parts as one, still part of the data.

    Raises:
        ValueError: it was not written so.
    """
    start = _HEAD_BYTES + int.from_bytes(data[:_HEAD_BYTES], "little")
    return parse_json(bytes(data[_HEAD_BYTES:start])), memoryview(data)[start:]
