"""What holds for every test."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# A busy machine is no failure.
settings.register_profile("micronpu", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("micronpu")
