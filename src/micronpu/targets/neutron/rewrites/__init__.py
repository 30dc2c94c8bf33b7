"""Rewrites of one operator for a Neutron whose rules refuse it; the cheapest applicable ones are used.

A pass improves every graph; a rewrite has a cost, and is applied only if a rule fails without it. Each is in the list
of its module.
"""

from __future__ import annotations

from micronpu.passes.rewrite import Rewrite
from micronpu.targets.neutron.rewrites.arithmetic import ARITHMETIC
from micronpu.targets.neutron.rewrites.views import CHANNELS, VIEWS
from micronpu.targets.neutron.rewrites.windows import WINDOWS

REWRITES: tuple[Rewrite, ...] = (*CHANNELS, *ARITHMETIC, *VIEWS, *WINDOWS)
