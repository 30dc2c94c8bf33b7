"""What holds for every test."""

from __future__ import annotations

import gc
import os
import sys

from hypothesis import HealthCheck, settings

# A busy machine is no failure.
settings.register_profile("micronpu", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("micronpu")

# Workers of pytest-xdist have the width of a terminal, which commands would write for.
os.environ.pop("COLUMNS", None)

# No test depends on what was computed before it, nor on what the user's cache holds.
os.environ["MICRONPU_CACHE"] = "off"

gc.disable()  # while modules are imported and rows are made, nearly all of which stay


def pytest_collection_finish() -> None:
    """Processes that import torch to test exports, of which there are hundreds, spend half of their time elsewhere."""
    if "executorch.exir" in sys.modules:
        from tests.quicker import keep_what_is_there, quicker

        quicker()
        keep_what_is_there()
    gc.enable()
