"""Text of ``--help``: options grouped by topic, with uncut names at any terminal width."""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from typer.core import TyperCommand

from micronpu.cli.old_spellings import rewritten_options

PANELS = {
    "Data": ("library", "normalize", "data", "labels", "metric"),
    "Accuracy": ("verify", "held_out"),
    "Kernels of your own": ("allow_missing_kernels",),
    "Report": (
        *("top", "every", "report_json", "trace", "etrecord", "manifest"),
        *("profile", "no_cache", "quiet", "debug"),
    ),
}
"""Panels of options that name none themselves, in --help-all."""
USUAL = (
    *("output", "target", "calibration", "images", "quantization", "io", "budget", "sparse", "deploy_to", "strict"),
    *("require_full", "report_html", "json", "data", "labels", "metric", "folder", "chart"),
)
"""Options that --help shows first if a command has more than it shows."""
MOST = 14
"""Options that --help shows; those of the target's NPU come on top."""
_ALL = "--help-all"


class Command(TyperCommand):
    """A command whose --help shows the usual options and those of the target's NPU, and --help-all every option.

    Options of the previous minor version are rewritten before they are parsed.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own = [flag for parameter in self.params for flag in (*parameter.opts, *parameter.secondary_opts)]
        args, notice = rewritten_options(args, own)
        if notice and not ctx.resilient_parsing:
            print(notice, file=sys.stderr)
        ctx.meta[_ALL] = _ALL in args
        ctx.meta["--target"] = _target_of(args)
        rest: list[str] = super().parse_args(ctx, ["--help"] if ctx.meta[_ALL] else args)
        return rest

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
            with _whole_names():
                super().format_help(ctx, formatter)
        finally:
            self.help = text
            for option in hidden:
                option.hidden = False


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
    from micronpu.targets.registry import BACKENDS

    return {backend.title for backend in BACKENDS.values()} & set((option.rich_help_panel or "").split(" and "))


def _rare(options: list[Any], own: list[Any], target: str) -> list[Any]:
    """Return the options that --help leaves out."""
    from micronpu.base.errors import MicroNpuError
    from micronpu.targets.registry import BACKENDS, find_target

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


@contextmanager
def _whole_names() -> Iterator[None]:
    """Make columns of the help fold instead of cutting names: typer sets no widths, and rich shortens all columns
    alike."""
    from rich.table import Table
    from rich.text import Text
    from typer import rich_utils

    class Whole(Table):
        def add_row(self, *cells: Any, **settings: Any) -> None:
            super().add_row(*cells, **settings)
            for column, cell in zip(self.columns, cells, strict=False):
                column.overflow = "fold"
                for part in getattr(cell, "renderables", ()):  # help text with its default
                    if isinstance(part, Text):
                        part.overflow = "fold"
                if isinstance(cell, Text) and cell.plain.startswith("-"):
                    column.no_wrap = True

    names = vars(rich_utils)
    before = names["Table"]
    names["Table"] = Whole
    try:
        yield
    finally:
        names["Table"] = before
