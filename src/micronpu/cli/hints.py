"""Commands that hints name, as lines that run: with the model, data and options of the command that printed them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

NAMED = re.compile(r"`micronpu\s+([a-z]+(?:\s+[a-z]+)?)`")
"""A command without arguments; the end of a line may divide it."""
_OWN = {
    "output",
    "report_json",
    "report_html",
    "json",
    "trace",
    "profile",
    "top",
    "every",
    "no_cache",
    "quiet",
    "debug",
}
"""Parameters about outputs, which another command does not take over."""


_SAFE = {"model", "program", "target", "data", "calibration", "images", "normalize", "library"}
"""Parameters that are taken over from a command that fails, whose settings may be the cause."""


def lines(text: str, context: object, *, failed: bool = False) -> Iterator[str]:
    """Yield a line for each command in a text that needs arguments, if the current command has all of them."""
    for name in dict.fromkeys(" ".join(found.split()) for found in NAMED.findall(text)):
        if (command := find(name, context)) is None:
            continue
        names = {param.name for param in command.params}
        given = _given(context, names & _SAFE if failed else names)
        needed = {param.name for param in command.params if param.required or param.name in ("model", "target")}
        if needed and needed <= given.keys():
            taken = (param for param in command.params if param.name in given)
            words = [word for param in taken for word in _words(param, given[param.name])]
            yield f"micronpu {name} {shlex.join(words)}"


def find(name: str, context: Any) -> Any:
    """Return the command of a name, with the options of the NPUs; None if there is none."""
    found = context.find_root().command
    for word in name.split():
        if getattr(found, "get_command", lambda *_: None)(context, word) is None:
            return None
        found = found.resolve_command(context, [word])[1]
    return found if found.params else None


def _given(context: Any, names: set[str]) -> dict[str, Any]:
    """Return values of parameters that the current command was given, by their names in another command."""
    chosen = {
        name: value
        for name, value in context.params.items()
        if value is not None and getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
    }
    found = {name: chosen[name] for name in names - _OWN if name in chosen}
    if context.params.get("output") is not None and "model" in chosen:  # of `compile`
        found.setdefault("program", context.params["output"])
    # The one kind of data that was given serves for the other, too.
    if "data" in names and "data" not in found and "calibration" in found:
        found["data"] = found.pop("calibration")
    elif "data" in chosen and "data" not in names and "calibration" in names:
        found.setdefault("calibration", chosen["data"])
    return {name: value for name, value in found.items() if name in names}


def _words(param: Any, value: object) -> Iterator[str]:
    """Yield a parameter as words of the command line."""
    if param.param_type_name == "argument":
        yield from map(str, value if isinstance(value, (list, tuple)) else [value])
    elif isinstance(value, bool):
        yield (param.opts if value else param.secondary_opts)[0]
    else:
        for each in value if isinstance(value, (list, tuple)) else [value]:
            yield from (param.opts[0], str(each))
