"""Output of the command: consoles, progress on long steps, and errors as one sentence."""

from __future__ import annotations

import functools
import io
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec

import typer
from rich.console import Console
from rich.text import Text

from micronpu.errors import MicroNpuError
from micronpu.progress import STEPS

DIFFERENT = 1
"""Exit code of a comparison that finds a difference."""

PLAIN_WIDTH = 120
"""Columns where the output is no terminal, so that tables are whole in a file or a log."""

Listener = Callable[[str, float], None]
Arguments = ParamSpec("Arguments")


def output(*, quiet: bool = False) -> Console:
    """Standard output, as it is at the time of the call; ``quiet`` prints nothing."""
    return _console(stderr=False, quiet=quiet)


def errors(*, quiet: bool = False) -> Console:
    """Standard error, as it is at the time of the call; ``quiet`` prints nothing."""
    return _console(stderr=True, quiet=quiet)


def _console(*, stderr: bool, quiet: bool) -> Console:
    # The bytes of a file's name may be no UTF-8; Python has them as characters that no stream takes.
    stream = sys.stderr if stderr else sys.stdout
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")
    console = Console(stderr=stderr, highlight=False, quiet=quiet)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PLAIN_WIDTH
    return console


@contextmanager
def progress(*, quiet: bool = False) -> Iterator[Listener]:
    """A listener that shows the steps on a terminal, and nothing where there is none, or with ``quiet``."""
    console = errors()
    if quiet or not console.is_terminal:
        yield lambda name, part: None
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(finished_text=" "), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        tasks: dict[str, TaskID] = {}

        def tell(name: str, part: float) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(STEPS.get(name, name), total=1.0)
            bar.update(tasks[name], completed=part)

        yield tell


def guarded(command: Callable[Arguments, None]) -> Callable[Arguments, None]:
    """A command that ends with a sentence and the exit code of the error where something is wrong.

    The command has a parameter ``debug``; where it is true the traceback is printed as well.
    """

    @functools.wraps(command)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except MicroNpuError as error:
            _fail(str(error), bool(kwargs.get("debug")), error.exit_code)
        except (BrokenPipeError, typer.Exit, typer.Abort):
            raise  # typer's own ways to end
        except Exception as error:
            text = str(error).strip()
            what = f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
            sentence = f"micronpu ended with an error that it did not expect: {what.rstrip('.')}."
            hint = "" if kwargs.get("debug") else " Try: the same command with --debug, which shows where it happened."
            _fail(sentence + hint, bool(kwargs.get("debug")))

    return run


def _fail(sentence: str, debug: bool, code: int = 1) -> None:
    console = errors()
    if debug:
        console.print(Text(traceback.format_exc()), soft_wrap=True)
    console.print(Text(f"Error: {sentence}", style="red"), soft_wrap=True)
    raise typer.Exit(code)
