"""Extensions: backends, commands and passes that other installed packages declare as entry points."""

from __future__ import annotations

import functools
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from micronpu.base.arguments import is_class
from micronpu.base.errors import ErrorsAs, OptionError, first_line

BACKEND_POINTS = "micronpu.backends"
"""Entry points that name a class derived from `micronpu.targets.backend.Backend`."""
COMMANDS = "micronpu.commands"
"""Entry points that name a `typer.Typer`, or a function with the annotations of a typer command."""
PASSES = "micronpu.passes"
"""Entry points that name a class derived from `micronpu.Pass`."""
GROUPS = (BACKEND_POINTS, COMMANDS, PASSES)


@functools.cache
def extensions(group: str) -> dict[str, EntryPoint]:
    """The entry points of a group by name, in the order of their names."""
    return {point.name: point for point in sorted(entry_points(group=group), key=lambda point: point.name)}


def package_of(point: EntryPoint) -> str:
    """Name and version of the package that declares an entry point."""
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else "an unknown package"


def load(point: EntryPoint, kind: type | tuple[type, ...], what: str) -> Any:
    """Import the object of an entry point, of a required class, or base class; the error names the package."""
    subject = f"`{point.name}` of the package {package_of(point)}, an entry point in {point.group},"
    name = point.dist.name if point.dist is not None else point.name
    what, hint = f"{subject} cannot be loaded", f"pip install --upgrade {name}, or pip uninstall {name}"
    with ErrorsAs(lambda e: OptionError(f"{what}: {type(e).__name__}: {first_line(e)}.", hint=hint), own=()):
        found = point.load()
    if not (isinstance(found, kind) or (is_class(found) and issubclass(found, kind))):
        raise OptionError(f"{subject} is no {what}.", hint=f"a newer {name}, or pip uninstall {name}")
    return found
