"""Command-line options made from the fields of the Neutron options, so that no field is named in a second place."""

from __future__ import annotations

import inspect
import operator
import re
from collections.abc import Callable
from dataclasses import Field, fields
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from micronpu.errors import InternalError

if TYPE_CHECKING:
    from micronpu.neutron.options import NeutronCompileOptions

PANEL = "Neutron"

_KEY = "micronpu.neutron"
_CHOSEN_BY_TARGET = "config"
_EXTENDED: dict[str, Callable[..., None]] = {}
_TYPES: dict[str, Any] = {"bool": bool, "str": str, "int": int, "float": float, "tuple[str, ...]": list[str]}


class Group(TyperGroup):
    """The commands, of which some get their Neutron options when they are called.

    Not earlier: the class that they are made from imports NumPy, which the list of commands must not wait for.
    """

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        if name in _EXTENDED:
            command = _with_neutron_options(name, _EXTENDED[name])
        return name, command, rest


def takes_neutron_options(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command one option for each field of `NeutronCompileOptions`; it asks `chosen_options` for them.

    Args:
        name: of the command.  It has a parameter ``context`` of type `typer.Context`.
    """

    def register(command: Callable[..., None]) -> Callable[..., None]:
        _EXTENDED[name] = command
        return command

    return register


def chosen_options(context: typer.Context, chip: str) -> NeutronCompileOptions:
    """The options that were given on the command line, the others at their defaults."""
    from micronpu.neutron.options import NeutronCompileOptions

    return NeutronCompileOptions(config=chip, **context.meta.get(_KEY, {}))


def _with_neutron_options(name: str, command: Callable[..., None]) -> Any:
    """The command with the options of its signature and those of the fields."""
    from micronpu.neutron.options import NeutronCompileOptions

    texts = _attribute_texts(NeutronCompileOptions)
    # All fields but the chip, which the target says.
    chosen = [f for f in fields(NeutronCompileOptions) if f.name != _CHOSEN_BY_TARGET]
    own = inspect.signature(command, eval_str=True).parameters.values()

    def run(**given: Any) -> None:
        values = {f.name: (f, given.pop(f.name)) for f in chosen}
        given["context"].meta[_KEY] = {n: _value(f, v) for n, (f, v) in values.items() if v is not None}
        command(**given)

    run.__doc__ = command.__doc__
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [*own, *(_parameter(f, texts.get(f.name, "")) for f in chosen)]
    )
    app = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False, add_completion=False)
    app.command(name=name)(run)
    return typer.main.get_command(app)


def _parameter(field: Field[Any], text: str) -> inspect.Parameter:
    kind = str(field.type)
    if kind not in _TYPES:
        raise InternalError(f"`{field.name}` has type {kind}, for which there is no command-line option.")
    flag = "--" + field.name.replace("_", "-")
    shown: str | bool = str(field.default) if kind in ("str", "int", "float") and field.default else False
    if kind == "bool" and field.default:  # the flag says the opposite of the field
        flag, text = f"--no-{flag[2:]}", f"Switch this off: {text}"
    elif kind.startswith("tuple"):
        text += " May be given several times."
    metavar = "NAME" if kind.startswith("tuple") else None
    option = typer.Option(flag, help=_sentence(text), rich_help_panel=PANEL, show_default=shown, metavar=metavar)
    annotation = operator.getitem(Annotated, (_TYPES[kind] | None, option))  # the type is a value here
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _value(field: Field[Any], given: Any) -> Any:
    """What a field gets from its option."""
    if isinstance(given, bool):
        return not field.default  # a flag is only ever given to change the default
    if not isinstance(given, list):
        return given
    if field.name == "extra_flags":  # a flag of another tool may hold a comma of its own
        return tuple(given)
    return tuple(part.strip() for text in given for part in text.split(",") if part.strip())


def _attribute_texts(cls: type) -> dict[str, str]:
    """What the class's doc-string says about each attribute, on one line."""
    section = (inspect.getdoc(cls) or "").partition("Attributes:\n")[2].split("\n\n")[0]
    texts = re.split(r"^    (\w+): ", section, flags=re.MULTILINE)[1:]
    return {name: " ".join(text.replace("``", "`").split()) for name, text in zip(texts[::2], texts[1::2], strict=True)}


def _sentence(text: str) -> str:
    """The text with a capital, its brackets safe from rich's markup."""
    return (text[:1].upper() + text[1:]).replace("[", "\\[")
