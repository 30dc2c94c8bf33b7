"""Chooses the rows of sweeps that a run has: of each test that is marked `sweep`, a share that the commit chooses.

A sweep is a test whose rows compile, quantize or call another implementation, a second or so in all, and find a defect
seldom.  Each commit runs one in `PARTS` of the rows (`sweep(8)`: one in eight), at least one of each test that has
several; a test without rows that is marked runs at one in as many commits.  Other commits run the others, so that all
run in a few days.  Tests of a file that have a row in common run it at the same commit, which compiles it once, and so
do tests of a file that have no rows, or whose rows look at one program (`sweep(together=True)`).

All rows run with `--rows all`, as `make test-all` and `.ci/run --all` have it, in a test file or a test that is named,
with `-k`, `--lf` or `--ff`, and where there is no commit.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.layers import ROOT

PARTS = 4
"""Shares of a sweep that does not say how many it has."""
ALL = "all"


def rows(text: str) -> str:
    """Return what follows `--rows` if it is a choice; raise ValueError otherwise."""
    return text if text == ALL else str(int(text))


def number_of_commit() -> int | None:
    """Return the number that chooses the shares of the commit that is checked out; None without one."""
    command = ["git", "rev-parse", "--short=6", "HEAD"]
    try:
        found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return None
    return None if found.returncode else int(found.stdout, 16)


def _number_of(text: str) -> int:
    """Return a number that says nothing of the text; with this hash the shares differ by 4 % in CPU seconds."""
    return int.from_bytes(hashlib.blake2b(text.encode()).digest()[:8], "big")


@dataclass(frozen=True)
class Row:
    """A row of a sweep.

    Attributes:
        test: its node id.
        parts: shares that the sweep has.
        together: whether all rows of the test run at the same commit.
    """

    test: str
    parts: int = PARTS
    together: bool = False

    @property
    def looks_at(self) -> str:
        """What tests of a file have in common that look at the same row: the file and the parameters."""
        path, _, rest = self.test.partition("::")
        return path if self.together else f"{path}[{rest.partition('[')[2]}".rstrip("[")


def chosen(rows: Iterable[Row], number: int) -> set[str]:
    """Return the node ids of the rows that the commit of a number runs."""
    tests: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        tests[row.test.partition("[")[0]].append(row)
    found = set()
    for several in tests.values():
        own = {row.test for row in several if (_number_of(row.looks_at) - number) % row.parts == 0}
        if not own and len(several) > 1 and not several[0].together:
            own = {min((_number_of(f"{number}{row.looks_at}"), row.test) for row in several)[1]}
        found |= own
    return found


class Shares:
    """A plug-in of pytest: leaves out the rows that are those of other commits, and says how many."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.left_out = 0
        self.rows: str | None = config.getoption("rows")
        if self.rows is None:
            number = number_of_commit()
            self.rows = ALL if number is None else str(number)
        config.option.rows = self.rows  # workers, which start later, get the options

    def pytest_report_header(self) -> str:
        """Say what makes the same choice again."""
        return f"rows of sweeps: --rows {self.rows}"

    def named(self) -> set[Path]:
        """Return the test files of which somebody asks for a test."""
        paths = (self.config.invocation_params.dir / argument.partition("::")[0] for argument in self.config.args)
        return {path.resolve() for path in paths if path.suffix == ".py"}

    @pytest.hookimpl(trylast=True)  # other rows are left out before
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out rows."""
        if self.rows == ALL or any(self.config.getoption(name, None) for name in ("keyword", "lf", "failedfirst")):
            return
        named = self.named()
        marks = {item.nodeid: item.get_closest_marker("sweep") for item in items if item.path not in named}
        rows = [Row(test, *mark.args, **mark.kwargs) for test, mark in marks.items() if mark]
        left_out = {row.test for row in rows} - chosen(rows, int(self.rows or 0))
        self.left_out = len(left_out)
        if left_out:
            self.config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
            items[:] = [item for item in items if item.nodeid not in left_out]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Send the number of rows from a worker."""
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["left_out"] = self.left_out

    def pytest_testnodedown(self, node: Any) -> None:
        """Note the number of a worker: all of them collect the same tests."""
        self.left_out = max(self.left_out, getattr(node, "workeroutput", {}).get("left_out", 0))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what was left out, and how to run it."""
        if self.left_out:
            terminalreporter.write_line(
                f"{self.left_out} rows of sweeps are left to other commits. The same choice again: --rows {self.rows}; "
                "all of them: --rows all, or name a test file."
            )


if __name__ == "__main__":
    # `python -m tests.shares 3`: which of three the commit chooses, for `.ci/run`
    print((number_of_commit() or 0) % int(sys.argv[1]))
