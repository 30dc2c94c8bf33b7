"""Command-line options made from the fields of the NPU backends' options, so that no field is named twice."""

from __future__ import annotations

import inspect
import operator
import sys
from collections.abc import Callable
from dataclasses import Field, fields
from types import FunctionType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from micronpu.base.errors import InternalError, OptionError
from micronpu.base.extensions import COMMANDS, extensions, load
from micronpu.cli.console import flag_of, guarded
from micronpu.cli.help import Command
from micronpu.cli.old_spellings import rewritten_command
from micronpu.report.codec import attribute_texts

if TYPE_CHECKING:
    from micronpu.targets.backend import Target
    from micronpu.targets.options import Options

_KEY = "micronpu.options"
_EXTENDED: dict[str, Callable[..., None]] = {}
_TYPES: dict[str, Any] = {
    "bool": bool,
    "str": str,
    "int": int,
    "float": float,
    "float | None": float,
    "tuple[str, ...]": list[str],
}


class Group(TyperGroup):
    """The commands; some get the options of the NPU backends when they are called.

    Earlier would slow down the list of commands: the option classes import NumPy.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        own = super().list_commands(ctx)
        return own + [name for name in extensions(COMMANDS) if name not in own]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        own = super().get_command(ctx, cmd_name)
        return _command_of(cmd_name) if own is None and cmd_name in extensions(COMMANDS) else own

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        now, own, notice = rewritten_command(args[0], args[1:])
        if notice and not ctx.resilient_parsing:
            print(notice, file=sys.stderr)
        name, command, rest = super().resolve_command(ctx, [now, *own])
        if name in _EXTENDED:
            command = _with_npu_options(name, _EXTENDED[name])
        return name, command, rest


def _command_of(name: str) -> Any:
    """Load a command of another package; if loading fails, the command raises when it is run."""
    made = typer.Typer(pretty_exceptions_enable=False)
    point = extensions(COMMANDS)[name]
    try:
        found = load(point, (typer.Typer, FunctionType), "typer.Typer and no function")
    except OptionError as error:
        problem = error

        def found() -> None:
            raise problem

        found.__doc__ = f"{problem.what}"
    if isinstance(found, typer.Typer):
        made = found
    else:
        made.command(name, cls=Command)(guarded(found))
    command = typer.main.get_command(made)
    command.name = name
    return command


def takes_npu_options(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command one option for each field of the backends' options; `chosen_options` returns them.

    Args:
        name: of the command.  It has a parameter ``context`` of type `typer.Context`.
    """

    def register(command: Callable[..., None]) -> Callable[..., None]:
        _EXTENDED[name] = command
        return command

    return register


def chosen_options(context: typer.Context, target: Target) -> Options:
    """Return the options for the target's NPU as given on the command line, the others at their defaults.

    Raises:
        OptionError: an option of another backend, or an invalid value.
    """
    from micronpu.targets.registry import BACKENDS, options_for

    backend = BACKENDS[target.backend]
    given: dict[str, Any] = context.meta.get(_KEY, {})
    own = {f.name: f for f in fields(backend.options)}
    for name in given:
        if name not in own:
            others = " and ".join(f.title for f in BACKENDS.values() if name in {o.name for o in fields(f.options)})
            raise OptionError(
                f"The option {flag_of(name)} is for {others}, but {target.name} is a target with {backend.title}.",
                hint="leave it out, or another --target",
            )
    values = {name: _value(own[name], value) for name, value in given.items()}
    options: Options = options_for(target, given=values)
    return options


def _with_npu_options(name: str, command: Callable[..., None]) -> Any:
    """Return the command with the options of its signature and those of the fields."""
    from micronpu.targets.registry import BACKENDS

    chosen: dict[str, list[tuple[str, Field[Any], str]]] = {}
    for backend in BACKENDS.values():
        texts = attribute_texts(backend.options)
        for field in fields(backend.options):
            if field.name != "silicon":
                chosen.setdefault(field.name, []).append((backend.title, field, texts.get(field.name, "")))
    own = inspect.signature(command, eval_str=True).parameters.values()

    def run(**given: Any) -> None:
        values = {name: given.pop(name) for name in chosen}
        given["context"].meta[_KEY] = {name: value for name, value in values.items() if value is not None}
        command(**given)

    run.__doc__ = command.__doc__
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [*own, *(_parameter(entries) for entries in chosen.values())]
    )
    app = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False, add_completion=False)
    app.command(name=name, cls=Command)(run)
    return typer.main.get_command(app)


def _parameter(entries: list[tuple[str, Field[Any], str]]) -> inspect.Parameter:
    """Return one option for fields of the same name: of one backend, or of several."""
    titles = [title for title, _, _ in entries]
    _, field, text = entries[0]
    if len({text for _, _, text in entries}) > 1:
        text = " ".join(f"{title}: {_sentence(text)}" for title, _, text in entries)
    kind = str(field.type)
    if kind not in _TYPES:
        raise InternalError(f"`{field.name}` has type {kind}, for which there is no command-line option.")
    flag = flag_of(field.name)
    shown: str | bool = str(field.default) if kind in ("str", "int", "float") and field.default else False
    if kind == "bool" and field.default:  # the flag means the opposite of the field
        flag, text = f"--no-{flag[2:]}", f"Turn this off: {text}"
    elif kind.startswith("tuple"):
        text += " May be given several times."
    metavar = "NAME" if kind.startswith("tuple") else None
    option = typer.Option(
        flag, help=_sentence(text), rich_help_panel=" and ".join(titles), show_default=shown, metavar=metavar
    )
    annotation = operator.getitem(Annotated, (_TYPES[kind] | None, option))  # the type is a runtime value here
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _value(field: Field[Any], given: Any) -> Any:
    """Return the value of a field from its option."""
    if isinstance(given, bool):
        return not field.default  # a flag is only ever given to change the default
    if not isinstance(given, list):
        return given
    if field.name == "extra_flags":  # flags of another tool may contain commas
        return tuple(given)
    return tuple(part.strip() for text in given for part in text.split(",") if part.strip())


def _sentence(text: str) -> str:
    """Return the text with a capital, and with brackets escaped for rich's markup."""
    return (text[:1].upper() + text[1:]).replace("``", "`").replace("[", "\\[")
