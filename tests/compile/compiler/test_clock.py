"""How long the steps of a compilation take."""

from __future__ import annotations

import itertools
import time

import pytest

from micronpu.compiler.clock import Clock


def test_seconds_are_of_all_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(None)
    monkeypatch.setattr(time, "perf_counter", map(float, itertools.count()).__next__)
    for _ in range(2):
        with clock.early("verify"):
            pass
        with clock.step("compile"):
            pass
    for _ in range(2):
        with clock.step("verify"):
            pass
    assert clock.seconds == {"compile": 2.0, "verify": 4.0}
