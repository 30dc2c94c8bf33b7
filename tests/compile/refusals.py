"""What every refusal looks like, in Python and on the command line: one sentence, with what to try."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from micronpu.base.errors import MicroNpuError
from micronpu.cli.main import app


def sentence(error: MicroNpuError) -> str:
    """The message, checked for its form: one line, a full stop before the hint and at the end."""
    text = str(error)
    assert "\n" not in text
    assert error.hint, f"nothing to try: {text}"
    assert text == f"{error.what} Try: {error.hint}."
    assert error.what[-1] in ".?"
    return text


def refused(call: Callable[[], Any], kind: type[MicroNpuError], *parts: str) -> None:
    """Checks that a call ends in an error whose sentence has these parts in this order."""
    with pytest.raises(MicroNpuError) as caught:
        call()
    assert type(caught.value) is kind
    text = sentence(caught.value)
    assert re.search(".*".join(map(re.escape, parts)), text), text


def failed(*arguments: object) -> str:
    """The one sentence on stderr of a command that ends with code 1, prints nothing else and leaves no file."""
    before = set(Path().iterdir())
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    text, *more = result.stderr.splitlines(keepends=True)
    assert text.startswith("Error: ")
    assert text.endswith(".\n")
    assert all(line.startswith("In full: micronpu ") for line in more)
    assert set(Path().iterdir()) == before
    return text
