"""Breaks passes, rewrites and rules one at a time, and lists what no test notices.

    python -m tests.mutation.mutate --seconds 3600 --out benchmarks/results/mutation.json [FILE ...]

A mutant is a file with one change: the body of a method that decides or computes skipped, a guard dropped (the
condition of an ``if`` that leaves is never true), a comparison moved by one, or a number in it.  A mutant that all
tests of its file pass is a survivor.

No file is written.  For each file one process collects its tests, and forks: once to see which test enters which
function, and once for each mutant, whose child gets the changed code in the place of the function's and runs the tests
that enter it, those first that found out others.  What survives that runs once more, in a process that imports the
changed file before anything has read it, with all its tests.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import functools
import gc
import hashlib
import importlib
import importlib._bootstrap_external as bootstrap  # type: ignore[import-not-found]
import io
import itertools
import json
import os
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from tests.mutation.plans import NO_DIFFERENCE, PLANS

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "micronpu"

_SPARE, _SECONDS = 20, 900
"""For a mutant that never ends: processor time beyond what its tests take, and time of the clock for one that waits."""
_OPTIONS = ("-q", "-x", "-p", "no:cacheprovider", "-m", "not slow")


@dataclass(frozen=True)
class Mutant:
    """One change of a file.

    Attributes:
        function: first line and name of the outermost function that is changed; None where it is none.
    """

    file: str
    line: int
    what: str
    tree: ast.Module
    function: tuple[int, str] | None = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.what}"

    def code(self) -> CodeType:
        """The whole file, with the lines of the original."""
        return compile(self.tree, str(PACKAGE / self.file), "exec")


def mutants(file: str) -> Iterator[Mutant]:
    """Every mutant of a file, in the order of its syntax tree."""
    text = (PACKAGE / file).read_text(encoding="utf-8")
    tree = ast.parse(text)
    spans = _functions(tree)
    for index, node in enumerate(ast.walk(tree)):
        if not isinstance(node, (ast.FunctionDef, ast.If, ast.Compare)):
            continue
        for kind in (_skip_body, _drop_guard, _move_comparison, _move_number):
            if what := kind(copy.deepcopy(node)):
                changed = ast.parse(text)
                kind(next(itertools.islice(ast.walk(changed), index, None)))
                function = next(((first, name) for first, last, name in spans if first <= node.lineno <= last), None)
                yield Mutant(file, node.lineno, what, ast.fix_missing_locations(changed), function)


def _functions(tree: ast.Module) -> list[tuple[int, int, str]]:
    """First and last line, decorators included, and name of functions that are not inside of functions."""
    found = []
    open_: list[ast.AST] = [tree]
    while open_:
        for node in ast.iter_child_nodes(open_.pop()):
            if isinstance(node, ast.FunctionDef):
                first = min(n.lineno for n in (node, *node.decorator_list))
                found.append((first, node.end_lineno or node.lineno, node.name))
            else:
                open_.append(node)
    return found


def _skip_body(node: ast.AST) -> str:
    """A method that is more than a doc-string and a return does nothing."""
    if not isinstance(node, ast.FunctionDef) or node.name.startswith("__"):
        return ""
    decorated = {ast.unparse(d).split("(")[0] for d in node.decorator_list}
    returns = ast.unparse(node.returns) if node.returns is not None else "None"
    if "abstractmethod" in decorated or not ("None" in returns or returns == "bool" or returns.startswith("Find")):
        return ""
    value = "False" if returns == "bool" else "None"
    if ast.unparse(node.body[-1]) == f"return {value}" and len(node.body) <= 2:
        return ""
    node.body = [ast.parse(f"return {value}").body[0]]
    return f"`{node.name}` does nothing"


def _drop_guard(node: ast.AST) -> str:
    if not isinstance(node, ast.If) or not node.body or node.orelse:
        return ""
    if not isinstance(node.body[-1], (ast.Return, ast.Continue, ast.Raise)):
        return ""
    what = ast.unparse(node.test)
    node.test = ast.Constant(False)
    return f"without `if {what}`"


_MOVED: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}


def _move_comparison(node: ast.AST) -> str:
    if not isinstance(node, ast.Compare) or len(node.ops) != 1 or type(node.ops[0]) not in _MOVED:
        return ""
    before = ast.unparse(node)
    node.ops = [_MOVED[type(node.ops[0])]()]
    return f"`{before}` is `{ast.unparse(node)}`"


def _move_number(node: ast.AST) -> str:
    if not isinstance(node, ast.Compare):
        return ""
    for part in node.comparators:
        if isinstance(part, ast.Constant) and type(part.value) is int:
            before = ast.unparse(node)
            part.value += 1
            return f"`{before}` is `{ast.unparse(node)}`"
    return ""


@dataclass
class _Tests:
    """A plug-in of pytest that forks between collecting the tests of a file and running them."""

    file: str
    until: float
    found: dict[str, list[str]] = field(default_factory=lambda: {"found_out": [], "unsure": [], "not_run": []})
    in_child: bool = False
    failed: str = ""
    _seen: dict[str, tuple[float, set[int]]] = field(default_factory=dict)
    _killers: Counter[str] = field(default_factory=Counter)

    def pytest_runtestloop(self, session: Any) -> bool | None:
        if session.testsfailed or not session.items:
            raise RuntimeError(f"The tests of {self.file} cannot be collected.")
        items = list(session.items)
        importlib.import_module(f"micronpu.{self.file.removesuffix('.py').replace('/', '.')}")
        functions = [f for f in gc.get_objects() if isinstance(f, FunctionType)]
        path = str(PACKAGE / self.file)
        functions = [f for f in functions if f.__code__.co_filename == path]
        gc.freeze()
        if self._fork(self._watch):
            return None
        if self.failed:
            self.found["fails"] = [self.failed]
            return True
        for mutant in mutants(self.file):
            if mutant.what in NO_DIFFERENCE.get(self.file, {}):
                continue
            entering = self._entering(mutant)
            outcome = "unsure"
            if time.monotonic() > self.until:
                outcome = "not_run"
            elif entering:
                # A test that found out others is likely to find out this one; of those that did not, the cheapest.
                chosen = [item for item in items if item.nodeid in entering]
                session.items[:] = sorted(chosen, key=lambda i: (-self._killers[i.nodeid], self._seen[i.nodeid][0]))
                cost = sum(self._seen[name][0] for name in entering)
                if self._fork(functools.partial(_replace, mutant, functions, cost)):
                    return None
                if self.failed:
                    self._killers[self.failed] += 1
                    self.found["found_out"].append(f"{mutant} by {self.failed}")
                    continue
            self.found[outcome].append(str(mutant))
        # What found out mutants has to pass where nothing is changed, as the last and in any order.
        session.items[:] = [item for item in items if self._killers[item.nodeid]]
        if self._fork(lambda: None):
            return None
        if self.failed:
            self.found["fails"] = [self.failed]
        return True

    def _entering(self, mutant: Mutant) -> set[str]:
        """The tests that enter the function of a mutant."""
        if mutant.function is None:
            return set()
        return {name for name, (_, lines) in self._seen.items() if mutant.function[0] in lines}

    def _fork(self, prepare: Callable[[], None]) -> bool:
        """Whether this is the child, which is prepared, and runs the tests; what it found is there in the parent."""
        source, sink = os.pipe()
        if (child := os.fork()) == 0:
            os.close(source)
            self.in_child, self._sink, self.failed = True, sink, ""
            prepare()
            return True
        os.close(sink)
        with os.fdopen(source, "rb") as stream:
            text = stream.read()
        _, status = os.waitpid(child, 0)
        said = json.loads(text) if text.endswith(b"}") else {"failed": f"ended with status {status}"}
        self.failed = said["failed"]
        self._seen.update((name, (cost, set(lines))) for name, (cost, lines) in said.get("seen", {}).items())
        return False

    def report(self, code: int) -> None:
        """What the child has to say to its parent."""
        said: dict[str, Any] = {"failed": self.failed or (f"pytest gave {code}" if code else "")}
        said["seen"] = {name: (cost, sorted(lines)) for name, (cost, lines) in self._seen.items()}
        with os.fdopen(self._sink, "wb") as stream:
            stream.write(json.dumps(said).encode())

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid

    def _watch(self) -> None:
        """From here on every test notes which functions of the file it enters."""
        path = str(PACKAGE / self.file)
        spans = _functions(ast.parse((PACKAGE / self.file).read_text(encoding="utf-8")))
        self._seen, tests = {}, self
        entered: set[int] = set()

        def trace(frame: Any, event: str, argument: Any) -> None:
            if frame.f_code.co_filename == path:
                line = frame.f_code.co_firstlineno
                entered.update(first for first, last, _ in spans if first <= line <= last)

        class Watch:
            def pytest_runtest_logstart(self, nodeid: str) -> None:
                self.start = time.process_time()
                entered.clear()
                sys.settrace(trace)

            def pytest_runtest_logfinish(self, nodeid: str) -> None:
                sys.settrace(None)
                tests._seen[nodeid] = (time.process_time() - self.start, set(entered))

        self._session_plugins.register(Watch())

    def pytest_configure(self, config: Any) -> None:
        self._session_plugins = config.pluginmanager


def _limit(cost: float) -> None:
    """Ends this process when it takes much more than the seconds that its tests took."""
    signal.alarm(_SECONDS)
    signal.setitimer(signal.ITIMER_PROF, 2 * cost + _SPARE)


def _replace(mutant: Mutant, functions: list[FunctionType], cost: float) -> None:
    """Gives functions of this process the code of the mutant; one that cannot have it stays as it was."""
    for code in _codes(mutant.code()):
        for function in functions:
            before = function.__code__
            places = {(c.co_firstlineno, c.co_name) for c in (before, code)}
            if places == {mutant.function} and len(before.co_freevars) == len(code.co_freevars):
                function.__code__ = code
    _limit(cost)


def _codes(code: CodeType) -> Iterator[CodeType]:
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield part
            yield from _codes(part)


def _quiet_pytest(arguments: list[str], *plugins: object) -> int:
    import pytest

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return int(pytest.main(arguments, plugins=list(plugins)))


def _run_file(file: str, until: float) -> dict[str, list[str]]:
    """The mutants of a file by what became of them, in a process of its own that has collected its tests."""
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(source)
        code, tests = 1, _Tests(file, until)
        try:
            code = _quiet_pytest([*_OPTIONS, *PLANS[file]], tests)
            if tests.in_child:
                tests.report(code)
            else:
                with os.fdopen(sink, "w") as stream:
                    json.dump(tests.found, stream)
        finally:
            os._exit(code if 0 <= code < 256 else 1)
    os.close(sink)
    with os.fdopen(source) as stream:
        text = stream.read()
    os.waitpid(child, 0)
    found: dict[str, list[str]] = json.loads(text) if text else {"fails": ["the collection of tests"]}
    return found


def survives(mutant: Mutant, cost: float) -> bool:
    """Whether every test passes where the file is imported with the mutant in place.

    Args:
        cost: seconds that this takes without the mutant.
    """
    child = os.fork()
    if child == 0:
        code = 1
        try:
            original = bootstrap.SourceFileLoader.get_code
            path = str(PACKAGE / mutant.file)

            def get_code(self: Any, fullname: str) -> Any:
                return mutant.code() if self.path == path else original(self, fullname)

            bootstrap.SourceFileLoader.get_code = get_code
            _limit(cost)
            code = _quiet_pytest([*_OPTIONS, *PLANS[mutant.file]])
        finally:
            os._exit(code if 0 <= code < 256 else 1)
    _, status = os.waitpid(child, 0)
    return status == 0


def digest(file: str) -> str:
    """Of a file and of the tests that judge it."""
    whole = hashlib.sha256((PACKAGE / file).read_bytes())
    for test in PLANS[file]:
        whole.update((ROOT / test.split("::")[0]).read_bytes())
    whole.update(json.dumps(NO_DIFFERENCE.get(file, {}), sort_keys=True).encode())
    return whole.hexdigest()[:16]


def judged(file: str, until: float, say: Callable[[str], None]) -> dict[str, Any]:
    """What became of the mutants of a file."""
    known, every = NO_DIFFERENCE.get(file, {}), list(mutants(file))
    for what in known:
        if sum(m.what == what for m in every) != 1:
            sys.exit(f"{file} has {sum(m.what == what for m in every)} mutants {what!r}, of which one is listed.")
    before = _cpu()
    found = _run_file(file, until)
    if "fails" in found:
        sys.exit(f"The tests of {file} fail without any change: {', '.join(found['fails'])}")
    cost, survivors = _cpu() - before, []
    for line in found["found_out"]:
        say(line)
    for mutant in every:
        if str(mutant) in found["unsure"] and survives(mutant, cost):
            survivors.append(str(mutant).partition(":")[2])
            print(f"survives: {mutant}", flush=True)
    counted = len(every) - len(known) - len(found["not_run"])
    return {
        "digest": digest(file),
        "found_out": counted - len(survivors),
        "survivors": survivors,
        "change_nothing": len(known),
        "not_run": len(found["not_run"]),
        "cpu_seconds": round(_cpu() - before),
    }


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("files", nargs="*", help="of the plans; unless given, all that have changed")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--verbose", action="store_true", help="say by which test a mutant is found out")
    chosen = parser.parse_args()
    os.chdir(ROOT)
    # What every child needs and no mutant touches.
    import numpy  # noqa: F401
    import pytest  # noqa: F401
    import torch  # noqa: F401

    assert not any(name.startswith("micronpu") for name in sys.modules)
    until = time.monotonic() + chosen.seconds
    kept = json.loads(chosen.out.read_text())["files"] if chosen.out and chosen.out.exists() else {}
    files = {file: kept[file] for file in PLANS if file in kept}
    for file in chosen.files or [f for f in PLANS if _is_old(f, files.get(f))]:
        files[file] = entry = judged(file, until, print if chosen.verbose else lambda line: None)
        counts = f"{entry['found_out']} found out, {len(entry['survivors'])} survive, {entry['not_run']} not run"
        print(f"{file}: {counts}, {entry['change_nothing']} change nothing, {entry['cpu_seconds']} s", flush=True)
        if chosen.out:
            _write(chosen.out, files)


def _is_old(file: str, entry: dict[str, Any] | None) -> bool:
    """Whether a file has to be judged: it or a test of its has changed, or there is something left to find out."""
    return entry is None or entry["digest"] != digest(file) or bool(entry["survivors"]) or entry["not_run"] > 0


def _write(path: Path, files: dict[str, dict[str, Any]]) -> None:
    """The results of every file that was run, and their sums."""
    ordered = {file: files[file] for file in PLANS if file in files}
    sums: dict[str, int] = dict.fromkeys(("found_out", "survivors", "change_nothing", "not_run", "cpu_seconds"), 0)
    for entry in ordered.values():
        for name in sums:
            sums[name] += len(entry[name]) if isinstance(entry[name], list) else entry[name]
    path.write_text(json.dumps({**sums, "files": ordered}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
