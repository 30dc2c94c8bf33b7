"""Breaks passes, rewrites and rules one at a time, and lists what no test notices.

    python -m tests.mutation.mutate --seconds 600 --out benchmarks/results/mutation.json [FILE ...]

A mutant is a file with one change: the body of a method that decides or computes skipped, a guard dropped (the
condition of an ``if`` that leaves is never true), a comparison moved by one, or a number in it.  Each runs in a child
of this process, which has loaded the libraries already and compiles the changed text in the place of the file: no file
is written, and a mutant takes a second or two.  A mutant that all tests of its file pass is a survivor.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib._bootstrap_external as bootstrap  # type: ignore[import-not-found]
import io
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "micronpu"

_PASSES = "tests/unit/passes/test_passes_"
_PASS_ROWS = (f"{_PASSES}rows.py",)
_REWRITE_ROWS = ("tests/unit/targets/test_rewrites_rows.py",)
_PUBLISHED = ("tests/unit/targets/neutron/test_published_rules.py",)
_PARTITION, _ELEMENTWISE = (
    "tests/compile/partition/test_partition.py",
    "tests/compile/ops/test_operators_elementwise.py",
)

PLANS: dict[str, tuple[str, ...]] = {
    **{
        f"passes/{name}.py": (f"{_PASSES}{name}.py", *_PASS_ROWS)
        for name in ("cleanup", "fusion", "legalize", "reshapes")
    },
    "passes/layout.py": (f"{_PASSES}layout.py", f"{_PASSES}lift.py", *_PASS_ROWS),
    "passes/windows.py": (f"{_PASSES}reshapes.py", *_PASS_ROWS),
    "passes/rewrites.py": (f"{_PASSES}rewrites.py", *_REWRITE_ROWS),
    "passes/choose.py": (f"{_PASSES}choose.py",),
    "targets/neutron/rules/published.py": _PUBLISHED,
    "targets/neutron/rules/spatial.py": (
        f"{_PARTITION}::test_both_sides_of_a_limit",
        "tests/compile/ops/test_operators_spatial.py::test_both_sides_of_a_limit",
        *_PUBLISHED,
    ),
    "targets/neutron/rules/elementwise.py": (
        f"{_PARTITION}::test_both_sides_of_a_limit",
        f"{_PARTITION}::test_parts_of_a_concatenation_share_their_grid",
        f"{_ELEMENTWISE}::test_rule_broadcast_goes_one_way",
        f"{_ELEMENTWISE}::test_rule_matrices_are_symmetric",
        *_PUBLISHED,
    ),
    **{
        f"targets/neutron/rewrites_{name}.py": (
            "tests/compile/targets/neutron/test_neutron_rewrites.py",
            *_REWRITE_ROWS,
        )
        for name in ("arithmetic", "channels", "views", "windows")
    },
    **{
        f"targets/ethosu/rewrites_{name}.py": ("tests/unit/targets/ethosu/test_ethosu_offers.py", *_REWRITE_ROWS)
        for name in ("cheaper", "fit", "spare")
    },
    "targets/ethosu/rewrites_sound.py": ("tests/oracle/targets/ethosu/test_ethosu_streams.py",),
    "targets/cortexm/rewrites.py": ("tests/unit/targets/cortexm/test_cortexm_rewrites.py", *_REWRITE_ROWS),
}
"""A file of the package and the tests that have to notice what is done to it, those that are quick first."""

NO_DIFFERENCE = {
    "passes/layout.py": {
        "without `if isinstance(node.op, Transpose)`": "a transpose says of itself that none passes through it",
        "`len(seen) < _FURTHEST` is `len(seen) <= _FURTHEST`": "a bound on time",
    },
    "passes/reshapes.py": {
        "without `if not isinstance(node.op, Slice)`": "the node is among the readers, all of which have to be slices",
        "`left < right` is `left <= right`": "the loop ends where they are equal",
    },
}
"""Mutants, file by file, that compute the same as what they were made of, and why."""

_SECONDS = 60  # for a mutant that never ends


@dataclass(frozen=True)
class Mutant:
    """One change of a file."""

    file: str
    line: int
    what: str
    source: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.what}"


def mutants(file: str) -> Iterator[Mutant]:
    """Every mutant of a file, in the order of its lines."""
    text = (PACKAGE / file).read_text(encoding="utf-8")
    count = sum(1 for _ in ast.walk(ast.parse(text)))
    for index in range(count):
        for kind in (_skip_body, _drop_guard, _move_comparison, _move_number):
            tree = ast.parse(text)
            node = next(n for i, n in enumerate(ast.walk(tree)) if i == index)
            what = kind(node)
            if what and what not in NO_DIFFERENCE.get(file, {}):
                changed = ast.unparse(ast.fix_missing_locations(tree))
                yield Mutant(file, getattr(node, "lineno", 0), what, changed)


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


def _run(mutant: Mutant, tests: tuple[str, ...]) -> int:
    """Runs the tests of a mutant in this process, which then is good for nothing else; the code that pytest gives."""
    import pytest

    original = bootstrap.SourceFileLoader.get_code
    path = str(PACKAGE / mutant.file)

    def get_code(self: Any, fullname: str) -> Any:
        return compile(mutant.source, path, "exec") if self.path == path else original(self, fullname)

    bootstrap.SourceFileLoader.get_code = get_code
    signal.alarm(_SECONDS)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-m", "not slow", *tests]))


def survives(mutant: Mutant, tests: tuple[str, ...]) -> bool:
    """Whether every test passes with the mutant in place."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = _run(mutant, tests)
        finally:
            os._exit(code if 0 <= code < 256 else 1)
    _, status = os.waitpid(child, 0)
    return status == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("files", nargs="*", help=f"of {', '.join(PLANS)}; all unless given")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    os.chdir(ROOT)
    # What every child needs and no mutant touches.
    import numpy  # noqa: F401
    import pytest  # noqa: F401
    import torch  # noqa: F401

    assert not any(name.startswith("micronpu") for name in sys.modules)
    start, killed, survivors, skipped = time.monotonic(), 0, [], 0
    for file in chosen.files or PLANS:
        unchanged = Mutant(file, 0, "nothing", (PACKAGE / file).read_text(encoding="utf-8"))
        if not survives(unchanged, PLANS[file]):
            sys.exit(f"The tests of {file} fail without any change.")
        for mutant in mutants(file):
            if time.monotonic() - start > chosen.seconds:
                skipped += 1
            elif survives(mutant, PLANS[file]):
                survivors.append(str(mutant))
                print(f"survives: {mutant}", flush=True)
            else:
                killed += 1
    files = list(chosen.files or PLANS)
    result = {"files": files, "killed": killed, "survivors": survivors, "not_run": skipped}
    print(f"{killed} mutants found out, {len(survivors)} survive, {skipped} not run")
    if chosen.out:
        chosen.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
