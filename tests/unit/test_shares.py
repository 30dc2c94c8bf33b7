"""Each commit runs a share of the rows of sweeps, and commits together run all of them."""

from __future__ import annotations

import argparse
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import shares
from tests.shares import ALL, PARTS, Row, Shares, chosen, number_of_commit

HERE = Path(__file__)
OTHER = HERE.with_name("test_costs.py")
FILE = "tests/unit/test_shares.py"
SWEEPS = [Row(f"{FILE}::{test}[{row}]") for test in ("a", "b") for row in range(40)]


@given(st.sets(st.tuples(st.sampled_from("abc"), st.text(max_size=3)), min_size=1), st.integers(1, 9), st.integers(0))
def test_shares_together_are_all_rows(rows: set[tuple[str, str]], parts: int, first: int) -> None:
    sweeps = [Row(f"{FILE}::{test}[{row}]", parts, test == "c") for test, row in rows]
    found = [chosen(sweeps, number) for number in range(first, first + parts)]
    assert set().union(*found) == {row.test for row in sweeps}
    several = {test for test, _ in rows if test != "c" and len([1 for other, _ in rows if other == test]) > 1}
    for share in found:
        assert {test.partition("[")[0] for test in share} >= {f"{FILE}::{test}" for test in several}


def test_a_test_without_rows_runs_at_one_in_as_many_commits() -> None:
    """Those of a file at the same, since they look at the same programs."""
    tests = [Row(f"test_{n}.py::test_{name}") for n in range(40) for name in "ab"]
    tests += [Row(f"test_{n}.py::test_c[{row}]", together=True) for n in range(40) for row in range(3)]
    found = [chosen(tests, number) for number in range(PARTS)]
    assert set().union(*found) == {row.test for row in tests} and sum(map(len, found)) == len(tests)
    assert max(map(len, found)) < len(tests) / 2
    files = [{test.partition("::")[0] for test in share} for share in found]
    assert sum(map(len, files)) == 40


def test_a_share_is_about_one_in_as_many_as_there_are() -> None:
    for number in range(PARTS):
        assert len(SWEEPS) / PARTS / 2 < len(chosen(SWEEPS, number)) < 2 * len(SWEEPS) / PARTS


def test_tests_of_a_file_run_the_same_rows() -> None:
    """What they compile of a row is compiled once; another test does not change which rows a test has."""
    found = chosen(SWEEPS, 7)
    assert {row.replace("::a", "::b") for row in found} == {row for row in found if "::b" in row}
    assert chosen(SWEEPS[:40], 7) == {row for row in found if "::a" in row}
    same, other = Row("x.py::A::test[1-b]"), Row("y.py::other[1-b]")
    assert same.looks_at == Row("x.py::other[1-b]").looks_at != other.looks_at


def _run(named: tuple[Path | str, ...] = (), **options: Any) -> tuple[set[str], Shares]:
    """Return which of the rows of two files a run has, and its plug-in."""
    asked = {"rows": "5", **options}
    hook = SimpleNamespace(pytest_deselected=lambda items: None)
    config = SimpleNamespace(
        getoption=lambda name, default=None: asked.get(name, default),
        option=SimpleNamespace(),
        invocation_params=SimpleNamespace(dir=HERE.parents[2]),
        args=[*map(str, named)],
        hook=hook,
    )
    mark = SimpleNamespace(args=(), kwargs={})
    items: list[Any] = [
        SimpleNamespace(nodeid=f"{path.name}::test[{n}]", path=path, get_closest_marker=lambda name: mark)
        for path in (HERE, OTHER)
        for n in range(40)
    ]
    unmarked = SimpleNamespace(nodeid="unmarked", path=HERE, get_closest_marker=lambda name: None)
    items.append(unmarked)
    plugin = Shares(cast("pytest.Config", config))
    plugin.pytest_collection_modifyitems(items)
    assert items.pop() is unmarked
    return {item.nodeid for item in items}, plugin


def test_rows_of_other_commits_are_left_out_and_counted() -> None:
    found, plugin = _run()
    assert 0 < len(found) < 60
    assert plugin.left_out == 80 - len(found)
    assert _run(rows="6")[0] != found
    lines: list[str] = []
    plugin.pytest_terminal_summary(cast("pytest.TerminalReporter", SimpleNamespace(write_line=lines.append)))
    assert lines[0].startswith(f"{plugin.left_out} rows of sweeps") and "--rows 5;" in lines[0]


@pytest.mark.parametrize(("text", "choice"), [(ALL, ALL), ("13", "13"), ("some", None)])
def test_rows_are_all_or_those_of_a_number(text: str, choice: str | None) -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--rows", type=shares.rows)
    if choice is None:
        with pytest.raises(argparse.ArgumentError, match="invalid rows value: 'some'"):
            parser.parse_args(["--rows", text])
    else:
        assert parser.parse_args(["--rows", text]).rows == choice


@pytest.mark.parametrize("options", [{"rows": ALL}, {"keyword": "x"}, {"lf": True}, {"failedfirst": True}])
def test_all_rows_run_where_somebody_asks(options: dict[str, Any]) -> None:
    found, plugin = _run(**options)
    assert len(found) == 80 and plugin.left_out == 0


@pytest.mark.parametrize("named", [HERE, FILE, f"{FILE}::test[3]"])
def test_a_named_file_has_all_its_rows(named: Path | str) -> None:
    found, _ = _run((named,))
    assert {test for test in found if test.startswith(HERE.name)} == {f"{HERE.name}::test[{n}]" for n in range(40)}
    assert 0 < len(found) - 40 < 30
    assert len(_run((HERE.parent,))[0]) < 60  # a folder is no file


def test_without_a_commit_all_rows_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert number_of_commit() is None  # without git
    git = tmp_path / "git"
    git.write_text("#!/bin/sh\nexit 128\n")
    git.chmod(0o755)
    assert number_of_commit() is None  # without a clone
    assert len(_run(rows=None)[0]) == 80


def test_the_commit_chooses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers get the number as an option, since another commit may be checked out when they start."""
    git = tmp_path / "git"
    git.write_text("#!/bin/sh\necho 00000d\n")
    git.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert number_of_commit() == 13
    found, plugin = _run(rows=None)
    assert plugin.config.option.rows == "13" and found == _run(rows="13")[0] != _run(rows="12")[0]
