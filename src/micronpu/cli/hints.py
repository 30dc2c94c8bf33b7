"""Commands that hints name, as lines that run: with the model, data and options of the command that printed them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

NAMED = re.compile(r"`micronpu\s+([a-z]+(?:\s+[a-z]+)?)`")
"""A command without arguments; the end of a line may divide it."""
_FILES = {"output", "report_json", "report_html", "trace", "profile"}
_OWN = _FILES | {"json", "top", "every", "no_cache", "quiet", "debug"}
"""Parameters about outputs, which another command does not take over."""
_SAFE = {"model", "program", "target", "data", "calibration", "images", "normalize", "library"}
"""Parameters that are taken over from a command that fails, whose settings may be the cause."""


def lines(text: str, context: object, *, failed: bool = False) -> Iterator[str]:
    """Yield a line for each command in a text that needs arguments, if the current command has all of them."""
    for name in dict.fromkeys(" ".join(found.split()) for found in NAMED.findall(text)):
        yield from command_line(name, context, failed=failed)


def command_line(name: str, context: object, *, failed: bool = False, **more: object) -> Iterator[str]:
    """Yield the line of a command, with other values (None for none), if the current command has all that it needs."""
    if (command := find(name, context)) is None:
        return
    several = {"target", "quantization", "data"} if command.name == "compare" else set()
    names = {param.name for param in command.params} - several
    given = _given(context, names & _SAFE if failed else names) | more
    given = {name: value for name, value in given.items() if value is not None}
    needed = {param.name for param in command.params if param.required} | (names & {"model", "target"})
    if needed and needed <= given.keys():
        taken = (param for param in command.params if param.name in given)
        words = [word for param in taken for word in _words(param, given[param.name])]
        yield f"micronpu {name} {shlex.join(words)}"


def find(name: str, context: Any) -> Any:
    """Return the command of a name, with the options of the NPUs; None if there is none."""
    found = context.find_root().command
    for word in name.split():
        if not hasattr(found, "get_command") or found.get_command(context, word) is None:
            return None
        found = found.resolve_command(context, [word])[1]
    return found if found.params else None


def _given(context: Any, names: set[str]) -> dict[str, Any]:
    """Return values that the current command was given by their names in another, one kind of data for the other."""
    source = context.get_parameter_source
    chosen = {n: v for n, v in context.params.items() if v is not None and source(n).name == "COMMANDLINE"}
    if context.params.get("output") is not None and "model" in chosen:  # of `compile`
        chosen.setdefault("program", context.params["output"])
    found = {name: chosen[name] for name in names - _OWN if name in chosen}
    if "data" in names and "data" not in found and "calibration" in chosen:
        found["data"] = found.pop("calibration", chosen["calibration"])
    elif "data" in chosen and "data" not in names and "calibration" in names:
        found.setdefault("calibration", chosen["data"])
    return found


def _words(param: Any, value: Any) -> list[str]:
    """Return a parameter as words of the command line."""
    if isinstance(value, bool):
        return [(param.opts if value else param.secondary_opts)[0]]
    flag = [] if param.param_type_name == "argument" else param.opts[:1]
    return [word for one in (value if isinstance(value, (list, tuple)) else [value]) for word in (*flag, str(one))]
