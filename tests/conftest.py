"""What holds for every test."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# A busy machine is no failure.
settings.register_profile("micronpu", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("micronpu")

# Workers of pytest-xdist have the width of a terminal, which commands would write for.
os.environ.pop("COLUMNS", None)
