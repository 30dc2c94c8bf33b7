"""How long files and functions are, how many parameters they have, and what is said once.

Complexity is ruff's C901, with its limit in `pyproject.toml`.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.layers import SOURCE, nodes

MOST_LINES, MOST_LINES_OF_FUNCTION, MOST_PARAMETERS = 600, 60, 10

LINES, LINES_OF_CORE = 97_670, 66_520
"""Maximum lines of the package's Python files, and of those outside `PRODUCTS`. The aims are 94,000 and 64,000."""

SLACK = 0.005
"""Share that the sums may grow by between releases, so that a first operator, rewrite or command fits.

What needs more pays by becoming simpler elsewhere; a release lowers the two numbers to what stands."""

PRODUCTS = (
    "accuracy",
    "advice",
    "board",
    "cli",
    "deploy",
    "frontend/model_files",
    "recipes",
    "report",
    "transforms/sparsity",
)
"""Packages that no compilation needs."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def files() -> Iterator[Path]:
    return SOURCE.rglob("*.py")


def functions() -> Iterator[tuple[str, Function]]:
    for path in files():
        for node in nodes(path):
            if isinstance(node, Function):
                yield f"{path.relative_to(SOURCE)}:{node.lineno} {node.name}", node


def lines_of(function: Function) -> int:
    """Of what a function does: without its signature, in which a command has its options, and its doc-string."""
    says = ast.get_docstring(function) is not None
    body = function.body[1:] if says else function.body
    return 0 if not body else (function.end_lineno or 0) - body[0].lineno + 1


def is_command(function: Function) -> bool:
    """Whether the parameters are the options of the command line."""
    return any("guarded" in ast.unparse(decorator) for decorator in function.decorator_list)


UPSTREAM = {"generate_neutron_compile_spec": "ExecuTorch's own signature, and names of ours"}
"""Functions whose parameters are not ours to choose, with the reason."""


MOST = {"walks over graph.nodes": 90, "lines with Any": 700, "except Exception": 17, "type: ignore": 31}
"""Maximum numbers of what hides types, errors or the purpose of a loop; each only ever becomes smaller.

`micronpu.frontend.graphs` has nodes by what they do, `base.errors` a context and a function for foreign exceptions;
what is only passed on or looked at by `isinstance` is an `object`."""


def hidden(path: Path) -> Counter[str]:
    """What there is of `MOST` in a file."""
    found = Counter({"type: ignore": path.read_text("utf-8").count("# type: ignore")})
    lines = set[int]()
    for node in nodes(path):
        if isinstance(node, (ast.For, ast.comprehension)):
            found["walks over graph.nodes"] += "graph.nodes" in ast.unparse(node.iter)
        elif isinstance(node, ast.ExceptHandler):
            found["except Exception"] += node.type is not None and ast.unparse(node.type) == "Exception"
        elif isinstance(node, ast.Name) and node.id == "Any":
            lines.add(node.lineno)
    return found + Counter({"lines with Any": len(lines)})


def test_little_is_hidden() -> None:
    found = sum(map(hidden, files()), Counter[str]())
    more = {what: f"{found[what]}, at most {most}" for what, most in MOST.items() if found[what] > most}
    assert not more, f"{more}: see MOST for what to write instead"


def test_files_are_short() -> None:
    long = {
        str(p.relative_to(SOURCE)): n for p in files() if (n := len(p.read_text("utf-8").splitlines())) > MOST_LINES
    }
    assert not long, long


def test_the_package_does_not_grow() -> None:
    lines = {p.relative_to(SOURCE).as_posix(): len(p.read_text("utf-8").splitlines()) for p in files()}
    core = {name: n for name, n in lines.items() if not name.startswith(PRODUCTS)}
    for found, most in ((lines, LINES), (core, LINES_OF_CORE)):
        total = sum(found.values())
        assert total <= most * (1 + SLACK), f"{total:,} lines, at most {most:,} and {SLACK:.1%}: simplify elsewhere"


def test_functions_are_short() -> None:
    long = [f"{name}: {n} lines" for name, node in functions() if (n := lines_of(node)) > MOST_LINES_OF_FUNCTION]
    assert not long, long


def test_functions_have_few_parameters() -> None:
    many = []
    for name, node in functions():
        own = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
        number = len([a for a in own if a not in ("self", "cls")])
        if number > MOST_PARAMETERS and not is_command(node) and node.name not in UPSTREAM:
            many.append(f"{name}: {number} parameters")
    assert not many, many


ONCE = ("MAX_PARTS",)
"""Limits and defaults that have been in several places."""


def test_what_is_decided_once_is_said_once() -> None:
    said: Counter[str] = Counter()
    for path in files():
        for node in nodes(path):
            targets = node.targets if isinstance(node, ast.Assign) else ()
            said.update(t.id for t in targets if isinstance(t, ast.Name) and t.id in ONCE)
    assert said == dict.fromkeys(ONCE, 1), said


def test_a_finished_program_is_built_once() -> None:
    """Nobody sets an attribute of a `CompiledProgram` from outside."""
    wrong = []
    for path in (SOURCE / "compiler").rglob("*.py"):
        for node in nodes(path):
            for target in node.targets if isinstance(node, ast.Assign) else ():
                if isinstance(target, ast.Attribute) and ast.unparse(target.value) in ("program", "made_program"):
                    wrong.append(f"{path.name}:{node.lineno} {ast.unparse(target)}")
    assert not wrong, wrong


def test_the_measure_measures() -> None:
    source = 'def f(\n    a,\n    b,\n):\n    """What."""\n' + "    a += 1\n" * 61
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef) and lines_of(function) == 61
