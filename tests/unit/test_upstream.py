"""Private and deprecated names of torch, torchao and ExecuTorch are in one room, each behind a door."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

from tests.layers import SOURCE, nodes

PACKAGES = ("torch", "torchao", "executorch")

PUBLIC = {
    "executorch.backends.cortex_m",
    "executorch.devtools",
    "executorch.devtools.inspector",
    "executorch.devtools.inspector.numerical_comparator",
    "executorch.exir",
    "executorch.exir.backend.backend_details",
    "executorch.exir.backend.compile_spec_schema",
    "executorch.exir.backend.partitioner",
    "executorch.exir.backend.utils",
    "executorch.exir.delegate",
    "executorch.exir.lowered_backend_module",
    "executorch.exir.pass_base",
    "executorch.exir.pass_manager",
    "executorch.exir.passes",
    "executorch.exir.passes.quantize_io_pass",
    "executorch.exir.tensor",
    "executorch.export",
    "executorch.export.stages",
    "executorch.kernels.quantized",
    "executorch.runtime",
}
"""Modules of ExecuTorch that its documentation uses; whatever else has no underscore in its name is internal, too."""

DOCUMENTED = {
    "os._exit": "of Python, and documented: the end of a process",
    "atexit._run_exitfuncs": "of Python: what is left to be done before it",
    "_replace": "of named tuples, and documented",
    "_fields_": "of ctypes, and documented",
    "_aten_imports": "of the package: what a function of a class that is not made yet is for",
}
"""Names with an underscore that are no one's secret, with the reason."""


def is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.endswith("__") for part in name.split("."))


def files() -> list[Path]:
    return sorted(p for p in SOURCE.rglob("*.py") if p.parent.name != "upstream")


@functools.cache
def own_names() -> frozenset[str]:
    """Names with an underscore that classes and modules of the package define."""
    found: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        if path.parent.name == "upstream":
            continue
        for node in nodes(path):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                found.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                    found.add(node.attr)
            elif isinstance(node, ast.arg):
                found.add(node.arg)
    return frozenset(name for name in found if is_private(name))


def imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (f"{alias.name}." for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


BY_STRING = ("getattr", "hasattr", "setattr", "delattr", "attrgetter", "methodcaller", "import_module", "__import__")
_PATH = re.compile(rf"(?:{'|'.join(PACKAGES)})(?:\.\w+)+(?::[\w.]+)?")


def is_internal(name: str) -> bool:
    """Whether an imported name of ExecuTorch's is of a module that it does not document.

    Args:
        name: a module as a whole ends with a dot.
    """
    return name.startswith("executorch.") and not {name.removesuffix("."), name.rpartition(".")[0]} & PUBLIC


def named(node: ast.Call) -> Iterator[str]:
    """Private names and paths of others that a call gives as strings."""
    function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if function not in BY_STRING:
        return
    for argument in node.args:
        if not (isinstance(argument, ast.Constant) and isinstance(argument.value, str)):
            continue
        own = argument.value in own_names() or argument.value in DOCUMENTED
        internal = _PATH.fullmatch(argument.value) and is_internal(f"{argument.value}.")
        if (is_private(argument.value) and not own) or internal:
            yield f"{function}({argument.value!r})"


def is_of_ao(node: ast.Attribute) -> bool:
    """Whether a name is what `torch.ao` may have: asked before the slow `ast.unparse`."""
    return isinstance(node.value, ast.Attribute) and node.value.attr == "ao"


def secrets(text: str | Path) -> Iterator[tuple[int, str]]:
    """Line and name of what a file uses of others that is private or deprecated."""
    for node in nodes(text) if isinstance(text, Path) else ast.walk(ast.parse(text)):
        for name in imported(node):
            theirs = name.split(".")[0] in PACKAGES
            if theirs and (is_private(name) or name.startswith("torch.ao.") or is_internal(name)):
                yield node.lineno, name  # type: ignore[attr-defined]
        if isinstance(node, ast.Attribute) and (is_private(node.attr) or is_of_ao(node)):
            name = ast.unparse(node)
            of_self = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            deprecated = name.startswith("torch.ao.")
            known = of_self or node.attr in own_names() or node.attr in DOCUMENTED or name in DOCUMENTED
            if deprecated or (is_private(node.attr) and not known):
                yield node.lineno, name
        elif isinstance(node, ast.Call):
            yield from ((node.lineno, name) for name in named(node))
            for keyword in node.keywords:
                if keyword.arg is not None and is_private(keyword.arg) and keyword.arg not in own_names():
                    yield node.lineno, f"{ast.unparse(node.func)}({keyword.arg}=)"


def test_no_other_package_uses_private_names() -> None:
    found = [f"{path.relative_to(SOURCE)}:{line}: {name}" for path in files() for line, name in secrets(path)]
    assert not found, found


def test_what_the_walk_would_find() -> None:
    for text in (
        "from torch._ops import OpOverload",
        "import torch.ao.quantization",
        "from executorch.exir.tracer import _default_decomposition_table",
        "import torch\nx = torch._C",
        "def f(program):\n    return program._tensor_data",
        "def f(graph):\n    graph._codegen = None",
        "EdgeCompileConfig(_check_ir_validity=False)",
        "def f(node):\n    return getattr(node.target, '_schema', None)",
        "def f(node):\n    return hasattr(node, '_codegen')",
        "from operator import attrgetter\nattrgetter('_op')",
        "import importlib\nimportlib.import_module('torch._higher_order_ops.scan')",
        "import importlib\nimportlib.import_module('executorch.exir.memory_planning')",
        "from executorch.exir.memory_planning import greedy",
        "from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass",
        "import executorch.exir.serde",
        "import torch\nclass Mine(torch.ao.quantization.observer.MinMaxObserver): ...",
    ):
        assert list(secrets(text)), text
    for text in (
        "from micronpu.quantize import _own",
        "import os\nos._exit(1)",
        "class A:\n    def f(self): self._x",
        "from executorch.exir import to_edge",
        "import executorch.kernels.quantized",
        "getattr(1, 'real')",
    ):
        assert not list(secrets(text)), text


def test_no_name_that_torch_gives_is_the_packages_own() -> None:
    """Names that would hide one of torch's from the walk, since a class of the package had one of the same name."""
    for name in ("_schema", "_codegen", "_op", "_parameters", "_graph_module", "_tensor_data", "_named_data_store"):
        assert name not in own_names(), name
