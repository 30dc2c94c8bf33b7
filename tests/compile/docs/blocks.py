"""The blocks of a page: what each is, and running it as a reader would who pastes it.

A block is a fence with a language. Commands stand in `sh`, or in `console` behind a `$`, there with what they print. A
comment in the line before a block keeps it from being run, `<!-- not run: REASON -->`, or from being run by the fast
tests, `<!-- slow -->`; with beginnings in brackets only the lines that begin so: `<!-- slow (micronpu compare) -->`.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from typer.testing import CliRunner

from micronpu.cli.main import app

LANGUAGES = {"python", "sh", "console", "toml", "c", "text"}
_FENCE = re.compile(r"^```(.*)\n((?:.*\n)*?)```$", re.MULTILINE)
_MARK = re.compile(r"<!-- (?P<what>slow|not run)(?: \((?P<begins>[^)]+)\))?(?:: (?P<reason>.+?))? -->\n$")
_NAMED = re.compile(r"`([\w-]+\.\w+)`[^\n`]*:\n\n$")
COMMAND = re.compile(r"^(?:\$ )?(?:micronpu|pip|make|python|cmake|west|git|bash) ")


@dataclass(frozen=True)
class Block:
    """A fence of a page.

    Attributes:
        language: of `LANGUAGES`.
        line: of its first line of text in the page, from 0.
        file: the file that the sentence before it says it is.
        slow: whether the fast tests leave it out.
        reason: why nothing runs it, None where it is run.
        begins: `slow` and `reason` are those of the commands that begin with one of these; of all where there is none.
    """

    language: str
    text: str
    line: int
    file: str | None
    slow: bool
    reason: str | None
    begins: tuple[str, ...]

    def skips(self, command: str, slow: bool) -> bool:
        """Whether a command of the block is left out."""
        marked = self.reason is not None or (self.slow and not slow)
        return marked and command.startswith(self.begins)


def blocks(text: str) -> Iterator[Block]:
    for fence in _FENCE.finditer(text):
        before = text[: fence.start()]
        mark, named = _MARK.search(before), _NAMED.search(before)
        yield Block(
            fence[1],
            fence[2],
            before.count("\n") + 1,
            named[1] if named else None,
            bool(mark and mark["what"] == "slow"),
            (mark["reason"] or "no reason") if mark and mark["what"] == "not run" else None,
            tuple((mark["begins"] or "").split(", ")) if mark else (),
        )


def commands(block: Block) -> Iterator[tuple[str, list[str]]]:
    """The commands of a block, each with the lines that the page says it prints."""
    command, printed = "", []
    for line in block.text.replace("\\\n", "").splitlines():
        if block.language == "sh":
            if line.strip() and not line.startswith("#"):
                yield line, []
        elif line.startswith("$ "):
            if command:
                yield command, printed
            command, printed = line[2:], []
        else:
            printed.append(line)
    if command:
        yield command, printed


def run_python(block: Block, page: Path, namespace: dict[str, object]) -> None:
    code = compile("\n" * block.line + block.text, str(page), "exec")
    with contextlib.redirect_stdout(io.StringIO()):
        exec(code, namespace)


def run_command(command: str, printed: list[str]) -> None:
    """Runs a command in the present folder; `micronpu` in this process, which spares it the import of torch.

    Raises:
        AssertionError: it fails where the page does not say so, or does not print what the page shows.
    """
    words = shlex.split(command, comments=True)
    if words[0] == "micronpu" and not {"|", ">", "&&", ";"} & set(words):
        result = CliRunner().invoke(app, words[1:], prog_name="micronpu")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        code, said = result.exit_code, result.output
    else:
        words = ["bash", "-c", command]
        search = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "PATH": search})
        code, said = done.returncode, done.stdout + done.stderr
    fails = any(line.startswith("Error: ") for line in printed)
    allowed = {1} if fails else {0, 1} if command.startswith("micronpu diff ") else {0}
    assert code in allowed, f"`{command}` ended with {code} and said:\n{said}"
    rest = [form(line) for line in said.splitlines()]
    for line in printed:
        if line.strip() in ("", "..."):
            continue
        assert form(line) in rest, f"`{command}` does not print, or not here:\n{line}\nbut\n{said}"
        del rest[: rest.index(form(line)) + 1]


def form(line: str) -> str:
    """A line without its numbers, which are another machine's, and without the widths of columns, which follow them."""
    return re.sub(r"[─\s]+", " ", re.sub(r"[-+]?\d[\d,.]*", "0", line)).strip()
