"""Output of the command: consoles, progress bars, and error messages."""

from __future__ import annotations

import contextlib
import errno
import functools
import inspect
import io
import json
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, get_type_hints

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from micronpu.base.cache import CACHE
from micronpu.base.errors import FileError, MicroNpuError, OptionError
from micronpu.base.files import check_writable, write_file
from micronpu.base.timing import STEPS

if TYPE_CHECKING:
    from micronpu.report.warnings import ReportWarning

DIFFERENT = 1
"""Exit code of a comparison that finds a difference."""

SECONDS = 20.0
"""Seconds between two lines of progress if the output is no terminal."""
PLAIN_WIDTH = 120
"""Columns if the output is no terminal, so that tables are not cut in a file or a log."""

ProgressCallback = Callable[[str, float], None]
Arguments = ParamSpec("Arguments")


def flag_of(name: str) -> str:
    """Return the flag of an option's Python name: ``held_out`` is ``--held-out``."""
    return "--" + name.replace("_", "-")


def option(metavar: str, help: str, *flags: str, default: str = "", complete: Any = None) -> Any:
    """An option with a value.

    Args:
        metavar: name of the value in the help.
        flags: "--name" and shorter ones; derived from the parameter's name by default.
        default: behaviour without the option, in words; "" to show none.
        complete: returns the values that the shell offers.
    """
    return typer.Option(*flags, metavar=metavar, help=help, show_default=default or False, autocompletion=complete)


def argument(metavar: str, help: str) -> Any:
    return typer.Argument(metavar=metavar, help=help, show_default=False)


def takes(**made: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a command: replace some parameters by one option for each field of a dataclass.

    Args:
        made: parameter = dataclass; its fields are annotated as parameters of a command are.
    """

    def extended(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(**given: object) -> None:
            values = {name: kind(**{f.name: given.pop(f.name) for f in fields(kind)}) for name, kind in made.items()}
            command(**values, **given)

        parameters: list[inspect.Parameter] = []
        for own in inspect.signature(command, eval_str=True).parameters.values():
            if own.name not in made:
                parameters.append(own)
                continue
            kind = made[own.name]
            hints = get_type_hints(kind, include_extras=True)
            for field in fields(kind):
                parameters.append(own.replace(name=field.name, default=field.default, annotation=hints[field.name]))
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return extended


Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ReportJson = Annotated[Path | None, option("PATH", "Write the result as JSON; - for standard output.")]
JsonInstead = Annotated[bool, typer.Option("--json", help="Print JSON to stdout, messages to stderr.")]
Library = Annotated[
    list[str] | None,
    option(
        "FILE.py", "A Python file that registers custom operators, imported before the model is. May be given several "
        "times.",
    ),
]  # fmt: skip
STANDARD_OUTPUT = Path("-")
_QUIET = inspect.Parameter(
    "quiet",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors and --json output.")],
)
NoCache = Annotated[bool, typer.Option("--no-cache", help="Do not use the compilation cache. Results are identical.")]
_quiet = False
"""True if the current command was given ``--quiet``."""


def output() -> Console:
    """Return the console of the current standard output; with ``--quiet`` it prints nothing."""
    return _console(stderr=False, quiet=_quiet)


def words(report_json: Path | None) -> Console:
    """Return the console for messages about the work: standard error if standard output gets JSON."""
    return _console(stderr=report_json == STANDARD_OUTPUT, quiet=_quiet)


def errors() -> Console:
    """Return the console of the current standard error."""
    return _console(stderr=True, quiet=False)


def say(text: str, style: str = "", to: Console | None = None) -> None:
    """Print a line as it is, however long, on standard output or another console."""
    (to or output()).print(Text(text, style=style), soft_wrap=True)


def write(path: Path, text: str, to: Console | None = None) -> None:
    """Write a text file, and print its name."""
    write_file(path, text.encode())
    say(f"Wrote {path}.", to=to)


def warn(warnings: Iterable[ReportWarning]) -> None:
    """Print severe warnings on standard error, if no report has shown them."""
    for warning in warnings:
        if warning.is_severe:
            say(f"Warning: {warning}", "bold yellow", to=errors())


def print_json(data: object) -> None:
    """Print JSON on standard output, even with ``--quiet``."""
    typer.echo(json.dumps(data, indent=2))


def json_path(json: bool, report_json: Path | None) -> Path | None:
    """Return the path for JSON that ``--json`` or ``--report-json PATH`` selects."""
    if json and report_json is not None:
        raise OptionError(
            "--json prints what --report-json writes to a file, and both are given.",
            hint="one of them; --report-json - is the same as --json",
        )
    return STANDARD_OUTPUT if json else report_json


def checked_json_path(json: bool, report_json: Path | None) -> Path | None:
    """Return `json_path`, and check that the file can be written."""
    path = json_path(json, report_json)
    if path not in (None, STANDARD_OUTPUT):
        check_writable(path)
    return path


def write_json(path: Path | None, text: str) -> None:
    """Write JSON to a file, or to standard output if the path is "-"."""
    if path == STANDARD_OUTPUT:
        typer.echo(text)
    elif path is not None:
        write(path, text + "\n")


_FOR_TERMINALS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Characters that control a terminal: control characters, and those that change the writing direction."""


PRINTED: dict[bool, list[str]] = {False: [], True: []}
"""Texts that the current command has printed on standard output, and (True) on standard error."""


class _Console(Console):
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Escape control characters: names come from models and programs, which may be untrusted.

        A file gets lines without trailing blanks.
        """
        blanks = ""
        for segment in super().render(renderable, options):
            if segment.control is None and _FOR_TERMINALS.search(segment.text):
                text = _FOR_TERMINALS.sub(lambda found: ascii(found.group())[1:-1], segment.text)
                segment = Segment(text, segment.style)
            if not self.quiet:
                PRINTED[self.stderr].append(segment.text)
            if not self.is_terminal and segment.control is None:
                text = re.sub(" +\n", "\n", blanks + segment.text)
                blanks = text[len(text.rstrip(" ")) :]
                segment = Segment(text.removesuffix(blanks), segment.style)
            yield segment

    def show_cursor(self, show: bool = True) -> bool:
        """Do nothing: a command that is interrupted during its progress bar would leave the cursor hidden."""
        return False

    def on_broken_pipe(self) -> None:
        """Discard further output (`| head` has closed the pipe), because files are still to be written."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _console(*, stderr: bool, quiet: bool) -> Console:
    # The bytes of a file name may be invalid UTF-8; Python represents them by characters that streams reject.
    stream = sys.stderr if stderr else sys.stdout
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")
    console = _Console(stderr=stderr, highlight=False, quiet=quiet)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PLAIN_WIDTH
    return console


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


@contextmanager
def at_work(name: str) -> Iterator[None]:
    """Show a step and its duration on a terminal."""
    with progress() as callback:
        callback(name, 0.0)
        yield


@contextmanager
def progress() -> Iterator[ProgressCallback]:
    """Return a progress callback: a bar on a terminal, a line now and then without one, nothing with ``--quiet``."""
    console = errors()
    if _quiet or not console.is_terminal:
        with contextlib.nullcontext(lambda name, part: None) if _quiet else _log(console, SECONDS) as notify:
            yield notify
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(finished_text=" "), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        tasks: dict[str, TaskID] = {}

        def notify(name: str, part: float) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(STEPS.get(name, name), total=1.0)
            bar.update(tasks[name], completed=part)

        yield notify


@contextmanager
def _log(console: Console, interval: float) -> Iterator[ProgressCallback]:
    """Return a progress callback; the current step is printed once per interval in seconds, also if it is never called.

    A thread prints: imports and calls of libraries take longer than the interval on a busy machine.
    """
    current, is_over = ["load", 0.0], threading.Event()

    def notify(name: str, part: float) -> None:
        current[:] = name, part

    def lines() -> None:
        while not is_over.wait(interval):
            name, part = current
            say(f"{STEPS.get(str(name), name)}: {part:.0%}", to=console)

    thread = threading.Thread(target=lines, name="progress", daemon=True)
    thread.start()
    try:
        yield notify
    finally:
        is_over.set()
        thread.join()


def guarded(command: Callable[Arguments, None]) -> Callable[Arguments, None]:
    """Decorate a command: errors become a message and an exit code.

    The command has a parameter ``debug``; if it is true, the traceback is printed as well. If it has a parameter
    ``no_cache`` that is true, the cache is neither read nor written. The command gets the option ``--quiet``.
    """

    @functools.wraps(command)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        global _quiet
        _quiet = bool(kwargs.pop("quiet", False))
        CACHE.notify = lambda sentence: say(f"Note: {sentence}", to=errors())
        try:
            _check_current_folder()
            with CACHE.left_out() if kwargs.get("no_cache") else contextlib.nullcontext():
                command(*args, **kwargs)
        except MicroNpuError as error:
            _fail(str(error), bool(kwargs.get("debug")), error.exit_code)
        except (BrokenPipeError, typer.Exit, typer.Abort, KeyboardInterrupt):
            raise  # typer's own exceptions
        except BaseException as error:  # a model may raise any exception, or call sys.exit
            if isinstance(error, OSError) and error.filename is None and _has_no_room(error):
                _fail(
                    f"The output cannot be written: {error.strerror}. Try: another place for it, or make room.", False
                )
            text = str(error).strip()
            what = f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
            sentence = f"micronpu ended with an error that it did not expect: {what.rstrip('.')}."
            hint = "" if kwargs.get("debug") else " Try: the same command with --debug, which shows where it happened."
            _fail(sentence + hint, bool(kwargs.get("debug")))
        finally:
            _quiet, CACHE.notify = False, None

    signature = inspect.signature(command, eval_str=True)
    own = [*signature.parameters.values()]
    place = next((i for i, p in enumerate(own) if p.name == "debug"), len(own))
    own[place:] = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own[place:]]
    run.__signature__ = signature.replace(parameters=[*own[:place], _QUIET, *own[place:]])  # type: ignore[attr-defined]
    return run


def _has_no_room(error: OSError) -> bool:
    """Return True if nothing can be written; `tempfile` reports that as a file that is not found."""
    return error.errno in _NO_ROOM or "No usable temporary directory" in str(error.strerror)


def _check_current_folder() -> None:
    try:
        os.getcwd()
    except OSError as error:
        raise FileError("The folder that the command was started in is no longer there.", hint="cd $HOME") from error


def _fail(sentence: str, debug: bool, code: int = 1) -> None:
    console = errors()
    if debug:
        say(traceback.format_exc(), to=console)
    say(f"Error: {sentence}", "red", to=console)
    raise typer.Exit(code)
