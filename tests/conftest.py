"""What holds for every test."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Literal

import pytest
from hypothesis import HealthCheck, settings

from tests.costs import AfterImport, Costs
from tests.shares import Shares, rows

# A busy machine is no failure.
settings.register_profile("micronpu", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("micronpu")

# Workers of pytest-xdist have the width of a terminal, which commands would write for.
os.environ.pop("COLUMNS", None)

AS_USERS = os.environ.get("MICRONPU_TESTS") == "users"
"""Compile at the default precision, with the cache and torch's own export, as CI does in some tests."""

# No test depends on what was computed before it, nor on what the user's cache holds.
if not AS_USERS:
    os.environ["MICRONPU_CACHE"] = "off"

gc.disable()  # while modules are imported and rows are made, nearly all of which stay


def set_precision(name: Literal["int8", "auto"]) -> None:
    """Set the precision of compilations that say nothing of it: of few random samples, a search tells nothing."""
    from micronpu.quantize import quantization

    quantization.UNSET = name


def _as_tests_compile(module: ModuleType) -> None:
    module.UNSET = "int8"  # type: ignore[attr-defined]


# Whatever imports the module, and when: a test that runs alone compiles as it does among all others.
if not AS_USERS:
    AfterImport({"micronpu.quantize.quantization": _as_tests_compile})


def _without_progress(module: ModuleType) -> None:
    """A busy machine would add lines of progress to the output of a command."""
    module.SECONDS = threading.TIMEOUT_MAX  # type: ignore[attr-defined]


AfterImport({"micronpu.cli.console": _without_progress})


@pytest.fixture(autouse=True)
def _precision_of_users(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compile as users do in tests that are marked `chooses`."""
    if AS_USERS or request.node.get_closest_marker("chooses") is None:
        yield
        return
    set_precision("auto")
    yield
    set_precision("int8")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what `.ci/run` asks for."""
    explained = "rows of tests marked `sweep`: `all`, or a number that chooses; that of the commit if it is not given"
    parser.addoption("--rows", type=rows, help=explained)
    parser.addoption("--tools", metavar="FILE", help="write which tests looked for or started a tool of tests/tools.py")


def pytest_configure(config: pytest.Config) -> None:
    """Count what the tests cost, and choose the rows of sweeps."""
    config.pluginmanager.register(Costs(config))
    config.pluginmanager.register(Shares(config))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A row that a joined program has anyway runs alone only where somebody names it."""
    named = config.getoption("keyword") or "alone" in config.getoption("markexpr") or any("[" in a for a in config.args)
    if not named:
        left_out = [item for item in items if item.get_closest_marker("alone")]
        items[:] = [item for item in items if not item.get_closest_marker("alone")]
        config.hook.pytest_deselected(items=left_out)


def pytest_collection_finish() -> None:
    """Processes that import torch to test exports, of which there are hundreds, spend half of their time elsewhere."""
    if "executorch.exir" in sys.modules and not AS_USERS:
        from tests.quicker import keep_what_is_there, quicker

        quicker()
        keep_what_is_there()
    gc.enable()
