"""Functions that call themselves: none walks along a user's program, which may have thousands of successive operators.

`micronpu.base.order.operands_first` is for what depends on operands; tables in the order of the graph, or backwards,
are for facts of all values.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from tests.layers import SOURCE, tree

from micronpu.base.order import operands_first

PACKAGES = (
    "ir",
    "ops",
    "host",
    "emit",
    "passes",
    "frontend",
    "quantize",
    "partition",
    "targets",
    "verify",
    "transforms",
)
"""The packages that see programs, and `compiler`."""

FLOW, MODULES, NESTED = (
    "control flow, which has one level",
    "modules in modules",
    "lists in the arguments of one operator",
)
BOUNDED = {
    "compiler/host.py": dict.fromkeys(("host_part", "_scans"), FLOW),
    "emit/flatbuffer_tables.py": dict.fromkeys(
        ("FlatbufferWriter.table", "FlatbufferWriter._write", "_fields", "_value"), "tables of a schema"
    ),
    "emit/tosa.py": {"TosaEmitter._reduce": "one call, for another operator"},
    "frontend/checks.py": {
        "_named_tuple": "containers of results",
        "check_control_flow": FLOW,
        "check_evaluation_mode": MODULES,
    },
    "frontend/control_flow.py": {"inlined": FLOW},
    "frontend/export.py": {"results_by_name": "containers of results", "rows_in_order.row": "containers of a sample"},
    "frontend/model_files/onnx.py": dict.fromkeys(
        ("_Walk.read", "_Walk._append", "_Walk._branch"), "an If in an If: protobuf reads 100 nested messages"
    ),
    "frontend/model_files/onnx_constants.py": {"with_data": "messages in messages: protobuf reads 100"},
    "frontend/model_files/onnx_functions.py": {"_with_attributes": "an If in an If, as above"},
    "frontend/positions.py": {"_fits": NESTED},
    "ops/pooling.py": {"_adaptive_max_to_pools.build": "axes"},
    "ops/bounds.py": {"never_negative.of"},
    "quantize/powers.py": dict.fromkeys(("_Parts.logarithm", "_Parts._scaled"), "a maximum"),
    "partition/host_block.py": {
        **dict.fromkeys(("_Builder.run", "_Builder.run.call", "_Builder._module"), MODULES),
        **dict.fromkeys(("tensors_of", "_leave_out_unread"), FLOW),
        "_key": NESTED,
    },
    "partition/lower.py": {"with_delegates": MODULES},
    "partition/outline.py": {"_states_first.copy_nodes": MODULES},
    "partition/write.py": {
        **dict.fromkeys(("_Writer._operand", "_Writer._list"), NESTED),
        **dict.fromkeys(("_Writer._steps", "_Writer._loop"), FLOW),
    },
    "ops/slicing.py": {"sliced": "one call, of fewer axes"},
    "passes/rewrite.py": dict.fromkeys(("choose", "choose.accepted"), "a stated depth"),
    "quantize/calibration_cache.py": {
        "observer_keys.keyed": "at most `FINER_DEPTH` averages and clamps",
        "_learners": "at most `FINER_DEPTH` averages and clamps",
    },
    "quantize/data.py": {"_tensors": FLOW},
    "quantize/float64.py": dict.fromkeys(("in_float64", "_loop_in_float64"), FLOW),
    "quantize/identities.py": {"_is_same": "a stated depth"},
    "quantize/post_training.py": {"_Inserter._observed": NESTED},
    "quantize/running.py": {"_Runner._results": "one call, sample by sample"},
    "quantize/settings_file.py": {"merged": "tables of a file of settings"},
    "quantize/solver/neighbours.py": {"_singular": "the exponential of a multiple of a logarithm"},
    "targets/cortexm/device.py": {"plan_scratch": MODULES},
    "targets/ethosu/plans.py": {"best_plan": "one call, without an option"},
    "targets/neutron/rewrites/arithmetic.py": {"copies": "one call, for blocks"},
}
"""What each recursion walks, by file and function."""


def functions(part: ast.AST, name: str = "", owner: str = "") -> Iterator[tuple[str, str, ast.FunctionDef]]:
    """The functions of a file: qualified name, class or function that they are in, and definition."""
    for inner in ast.iter_child_nodes(part):
        own = f"{name}.{inner.name}".strip(".") if isinstance(inner, ast.FunctionDef | ast.ClassDef) else name
        if isinstance(inner, ast.FunctionDef):
            yield own, owner, inner
        is_class = isinstance(inner, ast.ClassDef)
        yield from functions(inner, own, own if is_class else owner)


def body(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """All nodes of a function but those of functions and classes in it."""
    waiting: list[ast.AST] = [*function.body]
    for node in waiting:
        yield node
        waiting += () if isinstance(node, ast.FunctionDef | ast.ClassDef) else ast.iter_child_nodes(node)


def recursive(module: ast.Module) -> set[str]:
    """The functions of a file that call themselves, directly or by others of the file."""
    known = {name: (owner, function) for name, owner, function in functions(module)}
    classes = {owner for owner, _ in known.values() if owner}
    calls: dict[str, set[str]] = {}
    for name, (owner, function) in known.items():
        found = calls.setdefault(name, set())
        arguments = {a.arg for a in (*function.args.args, *function.args.kwonlyargs)}
        for node in body(function):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in arguments:
                scopes = name.split(".")
                inside = [".".join(scopes[:depth]) for depth in range(len(scopes), -1, -1)]
                places = (f"{scope}.{node.id}".strip(".") for scope in inside if scope not in classes)
                found.update([next((place for place in places if place in known), "")])
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self", "cls"):
                found.add(f"{owner}.{node.attr}")
    return {name for name in known if name in reached(calls, name)}


def reached(calls: dict[str, set[str]], name: str) -> set[str]:
    """The functions that one calls, by others too."""
    found, waiting = set[str](), [name]
    while waiting:
        new = calls.get(waiting.pop(), set()) - found
        found |= new
        waiting += new
    return found


@pytest.mark.parametrize("package", [*PACKAGES, "transforms"])
def test_recursion_is_bounded(package: str) -> None:
    found = {str(path.relative_to(SOURCE)): recursive(tree(path)) for path in (SOURCE / package).rglob("*.py")}
    own = {path: set(names) for path, names in BOUNDED.items() if path.startswith(f"{package}/")}
    assert {path: names for path, names in found.items() if names} == own


def test_recursion_is_found() -> None:
    text = """
def direct(x): return direct(x - 1)
def passed(xs): return list(map(passed, xs))
def one(x): return other(x)
def other(x): return [one(y) for y in x]
def plain(x): return direct(x)
def hidden(direct): return direct(1)
class A:
    def walk(self, x): return self.next(x)
    def next(self, x): return lambda: self.walk(x)
    def direct(self): return direct(1)
def outer():
    def inner(x): return inner(x)
    return inner
"""
    wanted = {"direct", "passed", "one", "other", "A.walk", "A.next", "outer.inner"}
    assert recursive(ast.parse(text)) == wanted


def test_operands_come_first_and_once() -> None:
    operands = {4: (3, 2), 3: (1, 2), 2: (1,), 1: ()}
    assert [*operands_first(4, operands.__getitem__)] == [1, 2, 3, 4]
    sums = operands_first(5000, lambda n: (n - 1, n - 2) if n > 1 else ())
    assert [*sums] == [1, 0, *range(2, 5001)]
