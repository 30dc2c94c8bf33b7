"""Parse untrusted JSON and TOML; anything invalid raises `ValueError`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

JsonObject: TypeAlias = dict[str, Any]
"""An object of JSON, or a table of TOML: texts, numbers, lists and others of its kind, by name."""
_LARGE = "an integer has more than 64 bits"
DEEPEST = 100
"""Maximum nesting of lists and tables; the values are processed recursively."""
_LEAST, _MOST = -(1 << 63), (1 << 64) - 1
"""Range of integers; larger ones fit neither a float nor an array."""


def parse_json(text: str | bytes) -> Any:
    """Parse JSON.

    Raises:
        ValueError: it is not JSON, is nested too deeply, or has an integer of more than 64 bits.
    """
    return _parsed(json.loads, text)


def parse_toml(text: str) -> JsonObject:
    """Parse TOML; raise `ValueError` as `parse_json`."""
    # `tomllib` exists since Python 3.11; its predecessor `tomli` is installed before that.
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    found: JsonObject = _parsed(tomllib.loads, text)
    return found


def toml_text(value: object) -> str:
    """Return a number, a truth value, a text, or a list of these as TOML."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_text, value))}]"
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _parsed(parse: Callable[[Any], object], text: str | bytes) -> Any:
    try:
        found = parse(text)
    except RecursionError:
        raise ValueError("lists or tables are nested too deeply") from None
    except ValueError as error:
        if "integer string conversion" in str(error):  # Python's limit of digits; its message names Python functions
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


def _inside(value: object) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


_HEAD_BYTES = 8


def with_head(head: object, *parts: bytes | memoryview) -> bytes:
    """Concatenate the length of a JSON head, the head, and the parts."""
    text = json.dumps(head).encode()
    return b"".join((len(text).to_bytes(_HEAD_BYTES, "little"), text, *parts))


def head_and_rest(data: bytes | memoryview) -> tuple[Any, memoryview]:
    """Split the result of `with_head` into the head and the concatenated parts, as a view of the data."""
    start = _HEAD_BYTES + int.from_bytes(data[:_HEAD_BYTES], "little")
    return parse_json(bytes(data[_HEAD_BYTES:start])), memoryview(data)[start:]
