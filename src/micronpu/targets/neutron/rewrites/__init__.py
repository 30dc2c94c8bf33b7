"""The rewrites of one operator for a Neutron whose rules refuse it, in no order: the cheapest that serve are taken.

A pass improves every graph; a rewrite costs something, and is applied only where a rule fails without it.  Each stands
in the list of its module.
"""

from __future__ import annotations

from micronpu.passes.rewrite import Rewrite
from micronpu.targets.neutron.rewrites.arithmetic import ARITHMETIC
from micronpu.targets.neutron.rewrites.channels import CHANNELS
from micronpu.targets.neutron.rewrites.views import VIEWS
from micronpu.targets.neutron.rewrites.windows import WINDOWS

REWRITES: tuple[Rewrite, ...] = (*CHANNELS, *ARITHMETIC, *VIEWS, *WINDOWS)
