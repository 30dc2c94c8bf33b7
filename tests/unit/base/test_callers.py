"""A warning points to the user's line, through whatever is between it and the package."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.layers import SOURCE, nodes

from micronpu.base import callers
from micronpu.upstream.shim import SEEN


def library(name: str, body: str, **names: object):
    """A function `call` of a module of that name."""
    scope = {"__name__": name, **names}
    exec(compile(inspect.cleandoc(body), f"/{name}.py", "exec"), scope)
    return scope["call"]


own = library("micronpu.compiler.thing", "def call(): warn('one')", warn=callers.warn)


def test_directly():
    with pytest.warns(UserWarning, match="one") as caught:
        own()
    assert (caught[0].filename, caught[0].lineno) == (__file__, inspect.currentframe().f_lineno - 1)


@pytest.mark.parametrize(
    "name", ["torch.fx.graph", "torchao.quantization", "executorch.exir", "micronpu", "contextlib"]
)
def test_through_a_library_that_calls_back(name):
    between = library(name, "def call(): back()", back=own)
    with pytest.warns(UserWarning) as caught:
        between()
    assert caught[0].filename == __file__


def test_through_context_managers_and_decorators():
    @contextlib.contextmanager
    def held():
        yield

    with pytest.warns(UserWarning) as caught:
        held()(functools.partial(own))()
    assert caught[0].filename == __file__


def test_through_a_library_of_no_name():
    """Code that torch.fx writes has no module."""
    scope: dict[str, object] = {"back": own}
    exec(compile("def call(): back()", "<eval_with_key>.0", "exec"), scope)
    del scope["__builtins__"]
    with pytest.warns(UserWarning) as caught:
        scope["call"]()  # type: ignore[operator]
    assert caught[0].filename == __file__


def test_the_outermost_line_where_there_is_no_other():
    """In a thread of a pool all frames are Python's and the package's."""
    with pytest.warns(UserWarning, match="one") as caught, ThreadPoolExecutor(1) as pool:
        pool.submit(own).result()
    assert caught[0].filename.endswith("threading.py")


def test_once_for_each_line_as_python_does():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            own()
        own()
    assert len(caught) == 2


def test_libraries_are_those_that_the_package_is_built_on():
    assert {"micronpu", *SEEN} == callers.LIBRARIES


def test_no_frame_is_counted_by_hand():
    counted = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in SOURCE.rglob("*.py")
        for node in nodes(path)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "warn"
        and ast.unparse(node.func) == "warnings.warn"
    ]
    assert counted == []
