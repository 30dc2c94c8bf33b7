"""How a value is shown, without the value knowing by whom.

A view says with `shows` which value it draws and in which form.  All of them are in `micronpu.report.views`, which is
imported when the first value is looked at: values themselves need neither rich nor a page.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, TypeVar

if TYPE_CHECKING:
    from rich.console import RenderableType

Form = Literal["terminal", "page", "notebook", "plot"]
"""What rich prints; a file with a page; the page inside of another one; a drawing (SVG) of its own."""
View = TypeVar("View", bound=Callable[..., Any])

_VIEWS: dict[tuple[type, Form], Callable[..., Any]] = {}


def shows(kind: type, form: Form = "terminal") -> Callable[[View], View]:
    """Registers a function of a value of a class, and of what else its form needs."""

    def register(view: View) -> View:
        _VIEWS[kind, form] = view
        return view

    return register


def shown(value: Any, form: Form, *more: Any) -> Any:
    """A value in a form."""
    if (type(value), form) not in _VIEWS:
        import_module(f"{__package__}.views")
    return _VIEWS[type(value), form](value, *more)


def rendered(value: Any) -> RenderableType:
    """A value as rich prints it."""
    view: RenderableType = shown(value, "terminal")
    return view
