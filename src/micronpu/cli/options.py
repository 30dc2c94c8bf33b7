"""Commands with their options: those of the NPU backends, help by topic, old spellings, completion of targets.

Options of the backends are made from the fields of their options, so that no field is named twice.
"""

from __future__ import annotations

import inspect
import itertools
import operator
import shutil
from collections.abc import Callable
from dataclasses import Field, fields
from types import FunctionType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from micronpu.base.errors import InternalError, MicroNpuError, OptionError
from micronpu.base.extensions import COMMANDS, extensions, load
from micronpu.cli import console, hints
from micronpu.cli.console import flag_of, guarded
from micronpu.report.codec import attribute_texts
from micronpu.targets.backend import Target as FoundTarget
from micronpu.targets.registry import BACKENDS, all_targets, find_target, options_for

if TYPE_CHECKING:
    from micronpu.targets.options import Options


def complete_target(incomplete: str) -> list[tuple[str, str]]:
    """Return targets and aliases that start with ``incomplete``, each with the chip's title."""
    try:
        targets = sorted(all_targets().items())
    except MicroNpuError:
        return []  # a message would disturb the line that is being typed
    found = []
    for name, target in targets:
        title = target.chip.title if target.chip is not None else BACKENDS[target.backend].title
        found += [(word, title) for word in (name, *target.entry.aliases) if word.startswith(incomplete)]
    return found


Target = Annotated[
    str,
    console.option(
        "NAME",
        "Target chip, NPU, core or chip file (required); see `micronpu targets`.",
        "--target",
        "-t",
        complete=complete_target,
    ),
]
"""Required, but "" by default: `find_target` rejects "" with an example of each kind of target."""


PANELS = {
    "Data": ("library", "normalize", "data", "labels", "metric"),
    "Accuracy": ("verify", "verify_import", "held_out"),
    "Kernels of your own": ("allow_missing_kernels",),
    "Report": (
        *("top", "every", "report_json", "trace", "etrecord", "manifest"),
        *("profile", "no_cache", "quiet", "debug"),
    ),
}
"""Panels of options that name none themselves, in --help-all."""
USUAL = (
    *("output", "target", "calibration", "images", "quantization", "io", "budget", "deploy_to", "strict", "json"),
    *("require_full", "report_html", "data", "labels", "metric", "folder", "chart", "sparse"),
)
"""Options that --help shows first if a command has more than it shows."""
MOST = 11
"""Options that --help shows; those of the target's NPU come on top."""
_ALL = "--help-all"


class Command(TyperCommand):
    """A command whose --help shows the usual options and those of the target's NPU, and --help-all every option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[_ALL] = _ALL in args
        ctx.meta["--target"] = _target_of(args)
        ctx.allow_extra_args = True  # they are refused here, with what they may be
        options = {name: option for option in self.get_params(ctx) for name in option.opts if name.startswith("-")}
        for name, value in itertools.pairwise(args):
            if name in options and not getattr(options[name], "is_flag", False) and value in options:
                ctx.fail(f"Option '{name}' requires an argument, and '{value}' follows.")
        rest: list[str] = super().parse_args(ctx, ["--help"] if ctx.meta[_ALL] else args)
        if rest and not ctx.resilient_parsing:
            known = [name for option in self.get_params(ctx) for name in option.opts]
            found = [name for name in ("--data", "--calibration", "--input", "--vectors") if name in known]
            hint = f" Try: {found[0]} {rest[0]}" if found and rest[0].endswith((".npy", ".npz")) else ""
            ctx.fail(f"There is no argument for {' '.join(rest)}.{hint}")
        return rest

    def invoke(self, ctx: Any) -> None:
        """Run the command; then print each command that its hints name as a line that runs."""
        for texts in console.PRINTED.values():
            texts.clear()
        failed = True
        try:
            super().invoke(ctx)
            failed = False
        finally:
            for out, texts in zip((console.output(), console.errors()), console.PRINTED.values(), strict=True):
                for line in hints.lines("".join(texts), ctx, failed=failed):
                    console.say(f"In full: {line}", to=out)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        options: list[Any] = [p for p in self.get_params(ctx) if p.param_type_name == "option"]
        own = [option for option in options if not _backends_of(option)]
        panels = {name: panel for panel, names in PANELS.items() for name in names} if len(own) > MOST else {}
        hidden = [] if ctx.meta[_ALL] or len(options) <= MOST else _rare(options, own, ctx.meta["--target"])
        text, self.help, self.epilog = self.help, _unwrapped(self.help or ""), None
        if hidden:
            self.epilog = f"{_ALL} shows all {len(options)} options" + (
                "." if len(own) == len(options) else ", and --help with -t TARGET those of its NPU."
            )
        try:
            for option in own:
                option.rich_help_panel = panels.get(option.name) if not hidden else None
            for option in hidden:
                option.hidden = True
            formatter.width = max(shutil.get_terminal_size().columns - 1, 50)  # click's is 78 at most
            self.rich_markup_mode = None  # boxes with four columns leave 22 letters for the text at 80 columns
            super().format_help(ctx, formatter)
        finally:
            self.help = text
            for option in hidden:
                option.hidden = False

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, then options by their panel."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for param in list[Any](self.get_params(ctx)):
            title = "Arguments" if param.param_type_name == "argument" else param.rich_help_panel or "Options"
            if (record := param.get_help_record(ctx)) is not None:
                panels.setdefault(title, []).append(record)
        for title, rows in panels.items():
            with formatter.section(title):
                formatter.write_dl(rows)


def _target_of(args: list[str]) -> str:
    """Return the target among the arguments of a command, "" without one."""
    for argument, value in itertools.zip_longest(args, args[1:], fillvalue=""):
        if argument in ("-t", "--target"):
            return value
        if argument.startswith("--target="):
            return argument.partition("=")[2]
    return ""


def _backends_of(option: Any) -> set[str]:
    """Return the titles of the NPUs that an option is for; an empty set for the command's own."""
    return {backend.title for backend in BACKENDS.values()} & set((option.rich_help_panel or "").split(" and "))


def _rare(options: list[Any], own: list[Any], target: str) -> list[Any]:
    """Return the options that --help leaves out."""
    try:
        backend = BACKENDS[find_target(target).backend].title if target else ""
    except MicroNpuError:
        backend = ""  # the command itself lists the valid targets
    order = ["help", *USUAL, *(option.name for option in own)]
    usual = sorted(own, key=lambda option: order.index(option.name))[:MOST]
    return [option for option in options if option not in usual and backend not in _backends_of(option)]


def _unwrapped(text: str) -> str:
    """Return the text with each paragraph on one line, so that the terminal decides where lines end."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in inspect.cleandoc(text).split("\n\n"))


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
        name, command, rest = super().resolve_command(ctx, args)
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


def chosen_options(context: typer.Context, target: FoundTarget) -> Options:
    """Return the options for the target's NPU as given on the command line, the others at their defaults."""
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


def _value(field: Field[Any], given: object) -> object:
    if isinstance(given, bool):
        return not field.default  # a flag is only ever given to change the default
    if not isinstance(given, list):
        return given
    if field.name == "extra_flags":  # flags of another tool may contain commas
        return tuple(given)
    return tuple(part.strip() for text in given for part in text.split(",") if part.strip())


def _sentence(text: str) -> str:
    return (text[:1].upper() + text[1:]).replace("``", "`")
