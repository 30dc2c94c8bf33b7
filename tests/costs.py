"""Shows what the tests cost: the CPU seconds of each folder, the slowest tests, and how often they compile.

`make test` prints it.  CPU seconds, those of child processes included, depend little on what else the machine does; the
number of compilations and of exports depends on the tests and hardly on anything else, so that a run of all of them
fails above `MOST`: who adds tests shares a program with others, or says in a commit why there are to be more.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any

import pytest

from tests.shares import ALL
from tests.tools import watch

SLOWEST = 20
"""Tests that are listed."""
MANY = 1000
"""Tests of a run, below which only the sum is printed."""
MOST = {"compilations": 1250, "exports": 3300}
"""How often the tests of `make test` may do what they take most of their time for.

They are a little above what the tests need with the largest share of the sweeps (tests/shares.py): each worker makes
the fixtures of a module whose tests it has some of, so that the counts of two runs differ by a few.
"""
WORKERS = 2
"""Test processes that the limits are for."""


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function with a module as soon as the module is imported, whoever imports it, and when."""

    def __init__(self, actions: Mapping[str, Callable[[ModuleType], None]]) -> None:
        self.actions = dict(actions)
        for name in self.actions.keys() & sys.modules.keys():
            self.actions.pop(name)(sys.modules[name])
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """Return the module's spec, whose loader ends with the action; None for modules without one."""
        if name not in self.actions or (spec := importlib.machinery.PathFinder.find_spec(name, path)) is None:
            return None
        action, loader = self.actions.pop(name), spec.loader
        assert loader is not None
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            action(module)

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def cpu_seconds() -> float:
    """Return the CPU seconds of this process, and of its children that have ended."""
    return sum(os.times()[:4])


class Costs:
    """A plug-in of pytest: each report brings what its phase took."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.counted: Counter[str] = Counter()
        self.last = (0.0, Counter[str]())
        self.before = 0.0
        self.of_test: dict[str, float] = defaultdict(float)
        self.of_folder: dict[str, Counter[str]] = defaultdict(Counter)
        self.with_tools: dict[str, None] = {}
        AfterImport(
            {
                "micronpu.compiler.assemble": lambda module: self.count(module, "lowered", "compilations"),
                "torch.export._trace": lambda module: self.count(module, "_export", "exports"),
            }
        )

    def pytest_sessionstart(self) -> None:
        """Count uses of tools, too."""
        watch(lambda: self.counted.update(tools=1))

    def count(self, module: ModuleType, name: str, what: str) -> None:
        """Count calls of a function of a module."""
        function = getattr(module, name)

        @functools.wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.counted[what] += 1
            return function(*args, **kwargs)

        # Errors name the last line of a user's file that they passed; a wrapper without a file is none.
        counted.__code__ = counted.__code__.replace(co_filename="<counted>")
        setattr(module, name, counted)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: Any) -> Any:
        """Attach to a report what its phase took: it comes to the main process of pytest-xdist as it is."""
        report = yield
        seconds, counted = cpu_seconds(), self.counted.copy()
        report.costs = {"seconds": seconds - self.last[0], **(counted - self.last[1])}
        self.last = seconds, counted
        return report

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Count from here."""
        self.last = cpu_seconds(), self.counted.copy()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up, in the process that prints."""
        costs: dict[str, float] = getattr(report, "costs", {})
        self.of_test[report.nodeid] += costs.get("seconds", 0)
        folder = str(PurePosixPath(report.nodeid.partition("::")[0]).parent)
        self.of_folder[folder].update(costs)  # type: ignore[arg-type]
        self.of_folder[folder]["tests"] += report.when == "call"
        if "tools" in costs:
            self.with_tools[report.nodeid] = None

    def pytest_collection_finish(self) -> None:
        """Note what the imports and the collection took."""
        self.before = cpu_seconds()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Send what a worker took before its tests; where all have run, fail if they did more than they may."""
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["collection"] = self.before
            return
        if path := self.config.getoption("tools"):
            Path(path).write_text("".join(f"{test}\n" for test in sorted(self.with_tools)), encoding="utf-8")
        if session.exitstatus == pytest.ExitCode.OK and self.too_many():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def total(self) -> Counter[str]:
        """Return what all folders took."""
        return sum(self.of_folder.values(), Counter[str]())

    def too_many(self) -> list[str]:
        """Return a sentence for each count of `make test` that is above its limit; nothing for a part of the tests."""
        option = self.config.getoption
        of_all = self.config.args_source is not pytest.Config.ArgsSource.ARGS and not option("keyword")
        of_all = of_all and option("markexpr") == "not slow" and option("rows") != ALL
        if not of_all or (option("numprocesses", None) or 0) > WORKERS:
            return []
        found = self.total()
        return [
            f"{found[what]} {what}, of which there may be {most}" for what, most in MOST.items() if found[what] > most
        ]

    def pytest_testnodedown(self, node: Any) -> None:
        """Add what a worker took before its tests."""
        self.of_folder["(collection)"]["seconds"] += getattr(node, "workeroutput", {}).get("collection", 0)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table."""
        write = terminalreporter.write_line
        terminalreporter.section("CPU seconds")
        columns = ("seconds", "tests", "compilations", "exports")
        rows = sorted(self.of_folder.items(), key=lambda row: -row[1]["seconds"])
        total = self.total()
        is_long = total["tests"] >= MANY
        for name, costs in [*(rows if is_long else ()), ("in all", total)]:
            write(f"{costs['seconds']:8.1f}" + "".join(f"{costs[c]:6} {c}" for c in columns[1:]) + f"  {name}")
        if not is_long:
            return
        for test, seconds in sorted(self.of_test.items(), key=lambda row: -row[1])[:SLOWEST]:
            write(f"{seconds:8.1f}  {test}")
        for sentence in self.too_many():
            write(f"FAILED: {sentence}: tests/costs.py", red=True)
