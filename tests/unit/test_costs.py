"""What the tests cost is counted, and a module is prepared whoever imports it first."""

from __future__ import annotations

import contextlib
import importlib
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import cast

import pytest
from tests.costs import MOST, AfterImport, Costs
from tests.tools import watch


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module that nothing has imported."""
    (tmp_path / "imported_later.py").write_text("def double(x):\n    return 2 * x\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.delitem(sys.modules, "imported_later", raising=False)
    return "imported_later"


@pytest.mark.parametrize("is_there", [True, False])
def test_prepared_once_before_and_after_the_import(module: str, is_there: bool) -> None:
    seen: list[ModuleType] = []
    if is_there:
        importlib.import_module(module)
    AfterImport({module: seen.append})
    assert seen == ([sys.modules[module]] if is_there else [])
    found = importlib.import_module(module)
    importlib.import_module(module)
    assert seen == [found]
    assert found.double(3) == 6


def test_calls_are_counted_for_the_test_that_makes_them(module: str, pytestconfig: pytest.Config) -> None:
    costs = Costs(pytestconfig)
    AfterImport({module: lambda found: costs.count(found, "double", "compilations")})
    found = importlib.import_module(module)
    assert [found.double(x) for x in (1, 2)] == [2, 4]
    assert costs.counted == Counter(compilations=2)


ALL = {"keyword": "", "markexpr": "not slow", "rows": "13"}


@pytest.mark.parametrize(
    ("changed", "source", "count", "fails"),
    [
        ({}, "TESTPATHS", 1, True),
        ({}, "TESTPATHS", 0, False),
        ({}, "ARGS", 1, False),
        ({"keyword": "pooling"}, "TESTPATHS", 1, False),
        ({"markexpr": ""}, "TESTPATHS", 1, False),
        ({"rows": "all"}, "TESTPATHS", 1, False),
        ({"numprocesses": 8}, "TESTPATHS", 1, False),
    ],
)
@pytest.mark.parametrize("what", MOST)
def test_all_tests_together_compile_no_more_than_they_may(
    what: str, changed: dict[str, object], source: str, count: int, fails: bool
) -> None:
    """Above the limit by one, of two folders, the run fails and says which count it is; a part of the tests never."""
    asked: dict[str, object] = {**ALL, **changed}
    source_of = pytest.Config.ArgsSource[source]
    costs = Costs(cast("pytest.Config", SimpleNamespace(args_source=source_of, getoption=asked.get)))
    for folder, counted in (("a", MOST[what]), ("b", count)):
        report = SimpleNamespace(costs={what: counted}, nodeid=f"tests/{folder}/test_x.py::test", when="call")
        costs.pytest_runtest_logreport(cast("pytest.TestReport", report))
    session = SimpleNamespace(exitstatus=pytest.ExitCode.OK)
    costs.pytest_sessionfinish(cast("pytest.Session", session))
    assert session.exitstatus == (pytest.ExitCode.TESTS_FAILED if fails else pytest.ExitCode.OK)
    assert [sentence.split()[1].strip(",") for sentence in costs.too_many()] == [what] * fails


def test_a_test_compiles_with_int8_whatever_was_imported_before() -> None:
    """A test that runs alone imports the package itself, after the collection."""
    from micronpu.quantize import quantization

    assert quantization.UNSET == "int8"


@pytest.mark.parametrize(
    ("use", "is_seen"),
    [
        (lambda: shutil.which("qemu-system-arm"), True),
        (lambda: shutil.which("c++"), False),
        (lambda: subprocess.run([sys.executable, "-c", ""], check=True), False),
        (lambda: subprocess.run([sys.executable, "-c", "import micronpu.cli"], check=True), True),
        (lambda: subprocess.run([sys.executable, "-m", "micronpu.cli", "--version"], check=True), True),
        (lambda: subprocess.run([sys.executable, "nowhere.py"], check=False), True),
        (lambda: subprocess.run([sys.executable, "-I", "-c", ""], check=True), False),
        (lambda: subprocess.run("true", shell=True, check=True), True),
        (lambda: subprocess.Popen(stdout=None, args=[Path("nowhere/arm-none-eabi-gcc")]), True),
        (lambda: subprocess.run(["nowhere/git"], check=True), False),
    ],
)
def test_uses_of_programs_that_a_machine_may_lack_are_seen(
    use: Callable[[], object], is_seen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Python or a shell may start one; a C++ compiler is on every machine."""
    found: list[bool] = []
    monkeypatch.setattr(shutil, "which", shutil.which)
    monkeypatch.setattr(subprocess.Popen, "__init__", subprocess.Popen.__init__)
    watch(lambda: found.append(True))
    with contextlib.suppress(FileNotFoundError):
        use()
    assert found == [True] * is_seen


def test_the_tests_that_used_a_tool_are_written_down(tmp_path: Path) -> None:
    """In any phase, each once, as arguments of pytest."""
    options = {**ALL, "tools": str(tmp_path / "tools.txt")}
    costs = Costs(cast("pytest.Config", SimpleNamespace(getoption=options.get, args_source=None)))
    for name, when, counted in [("b[1]", "setup", 2), ("b[1]", "call", 1), ("a", "call", 1), ("none", "call", 0)]:
        found = {"tools": counted} if counted else {}
        report = SimpleNamespace(costs=found, nodeid=f"tests/x/test_x.py::{name}", when=when)
        costs.pytest_runtest_logreport(cast("pytest.TestReport", report))
    costs.pytest_sessionfinish(cast("pytest.Session", SimpleNamespace(exitstatus=pytest.ExitCode.OK)))
    assert (tmp_path / "tools.txt").read_text() == "tests/x/test_x.py::a\ntests/x/test_x.py::b[1]\n"
