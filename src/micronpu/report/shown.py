"""Base classes of reports, which are printed and written as JSON, and the registry of their views.

A view registers with `shows` for a class and a form.  All views are in `micronpu.report.views`, which is imported when
the first value is shown: values themselves need neither rich nor a page.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from micronpu.base.arguments import check_type
from micronpu.base.parsing import JsonObject
from micronpu.report.codec import encode

if TYPE_CHECKING:
    from rich.console import RenderableType


Form = Literal["terminal", "page", "notebook", "plot"]
"""Output for rich; the text of a page; the page embedded in a notebook; a separate drawing (SVG)."""
View = TypeVar("View", bound=Callable[..., Any])

_VIEWS: dict[tuple[type, Form], Callable[..., Any]] = {}


def shows(kind: type, form: Form = "terminal") -> Callable[[View], View]:
    """Register a view: a function of a value of the class, and of further arguments of the form."""

    def register(view: View) -> View:
        _VIEWS[kind, form] = view
        return view

    return register


def shown(value: object, form: Form, *more: object) -> Any:
    if (type(value), form) not in _VIEWS:
        import_module(f"{__package__}.views")
    return _VIEWS[type(value), form](value, *more)


LINES = 12
_WIDTH = 160
"""Maximum number of lines and of characters in a line of a value's repr."""


class Shown:
    """A value that is printed as commands show it, with a short repr, and a notebook view that equals the terminal's.

    A class with a view for notebooks has that one there.

    Dataclasses are made with ``repr=False``: their own repr would show all fields, including bytes and thousands of
    rows.
    """

    def __rich__(self) -> RenderableType:
        view: RenderableType = shown(self, "terminal")
        return view

    def __str__(self) -> str:
        return _printed(self)[0]

    def __repr__(self) -> str:
        lines = str(self).splitlines()
        shown = ["".join(c if c.isprintable() else ascii(c)[1:-1] for c in line) for line in lines[:LINES]]
        shown = [line if len(line) <= _WIDTH else f"{line[: _WIDTH - 3]}..." for line in shown]
        if len(lines) > LINES:
            shown.append(f"... {len(lines) - LINES} lines more")
        return "\n".join((f"<{type(self).__name__}>", *shown))

    def _repr_html_(self) -> str:
        printed = _printed(self)[1]  # which registers all views
        return str(shown(self, "notebook")) if (type(self), "notebook") in _VIEWS else printed


def _printed(value: object) -> tuple[str, str]:
    """Return the terminal view as text and as HTML."""
    import io

    from rich.console import Console

    console = Console(record=True, file=io.StringIO(), width=120, highlight=False, force_jupyter=False)
    console.print(value)
    form = "<pre style=\"font-family:Menlo,'DejaVu Sans Mono',consolas,monospace;line-height:1.3\">{code}</pre>"
    text = "\n".join(line.rstrip() for line in console.export_text(clear=False).splitlines())
    return text, console.export_html(inline_styles=True, code_format=form)


class JsonReport(Shown):
    """A dataclass, made with ``repr=False``, that is printed and written as JSON.

    Attributes:
        FORMAT: name of the kind of report in the JSON.
        VERSION: version of the JSON.  Keys may be added within a version; none is removed or changes its meaning.
    """

    FORMAT: ClassVar[str]
    VERSION: ClassVar[int] = 1

    def to_dict(self) -> JsonObject:
        """Return the content of `to_json`."""
        return {"format": self.FORMAT, "version": self.VERSION, **encode(self)}

    def to_json(self, indent: int | None = 2) -> str:
        """Return the report as JSON; docs/report.md and docs/accuracy.md describe it."""
        check_type("indent", indent, int, type(None))
        return json.dumps(self.to_dict(), indent=indent)
