"""Names of the rewrites of the float program, by which each can be disabled.

These are the decompositions of `micronpu.ops`, and the rewrites of whole programs in this package.  A rewrite is a
function; its name without the leading underscore is the name of the switch, and the first paragraph of its docstring is
shown by `micronpu passes`.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Collection, Iterable, Set
from typing import Any, TypeVar

from torch.fx import GraphModule

from micronpu.base.arguments import strings
from micronpu.base.errors import OptionError, one_of
from micronpu.ir.lowering import decompositions

_MODULES = ("decompose", "identities", "norms", "positions")
_SENTENCES: dict[str, str] = {}

Function = TypeVar("Function", bound=Callable[..., Any])


def switch_of(rewrite: Callable[..., Any]) -> str:
    """Return the name by which a rewrite is disabled."""
    return rewrite.__name__.lstrip("_")


def switchable(rewrite: Function) -> Function:
    """Make a rewrite switchable."""
    text = inspect.getdoc(rewrite)
    assert text, "a rewrite's doc-string is what users read"
    _SENTENCES[switch_of(rewrite)] = " ".join(text.split("\n\n")[0].split())
    return rewrite


def float_rewrites() -> dict[str, str]:
    """Return descriptions of the rewrites of the float program, by name."""
    for module in _MODULES:
        importlib.import_module(f"micronpu.quantize.{module}")
    return dict(sorted((decompositions() | _SENTENCES).items()))


def is_on(rewrite: Callable[..., Any], disabled: Collection[str]) -> bool:
    """Return True if a rewrite is not disabled."""
    return switch_of(rewrite) not in disabled


def apply(rewrite: Callable[..., bool], disabled: Collection[str], model: GraphModule, *more: Any) -> None:
    """Apply a rewrite of a whole program, which returns whether anything changed, unless it is disabled."""
    clean(model, is_on(rewrite, disabled) and rewrite(model, *more))


def clean(model: GraphModule, changed: bool) -> None:
    """Remove unused nodes from a program that was changed, in place."""
    if changed:
        model.graph.eliminate_dead_code()
        model.recompile()


def check_rewrites(disabled: Iterable[str]) -> frozenset[str]:
    """Check that all names are rewrites of the float program, and return them.

    Raises:
        OptionError: one of them is not, or a single string is given.
    """
    if isinstance(disabled, str):
        raise OptionError(
            f"The rewrites to leave out are {disabled!r}; they are a list of names.", hint=f"[{disabled!r}]"
        )
    names = frozenset(strings("disabled_rewrites", sorted(disabled) if isinstance(disabled, Set) else disabled))
    for name in sorted(names - set(float_rewrites())) if names else ():
        hint = one_of(float_rewrites(), name, "`micronpu passes`")
        raise OptionError(f"There is no rewrite {name!r} of the float program.", hint=hint)
    return names
