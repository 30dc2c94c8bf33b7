"""The note of a partition's plan gives the costs of the others, or why there are none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from micronpu.targets.ethosu.device import _plan
from micronpu.targets.ethosu.plans import VelaPlan


def test_a_refused_plan_has_its_reason() -> None:
    others = (VelaPlan("TOSA", cycles=110), VelaPlan("LiteRT", objection="Vela takes no Erf."))
    part: Any = SimpleNamespace(name="conv", plan=VelaPlan("LiteRT", cycles=100), rewrites={}, others=others)
    assert "Other plans: TOSA 110 (+10.0%); LiteRT refused (Vela takes no Erf). The time" in _plan(part)
