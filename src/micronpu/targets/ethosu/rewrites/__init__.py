"""Rewrites of one operator for an Ethos-U, by purpose. Each is in the list of its module."""

from __future__ import annotations

from micronpu.passes.rewrite import Rewrite
from micronpu.targets.ethosu.rewrites.cheaper import PARTS, TO_COME_EARLIER, TO_COST_LESS, in_parts
from micronpu.targets.ethosu.rewrites.fit import TO_FIT
from micronpu.targets.ethosu.rewrites.sound import TO_BE_SOUND
from micronpu.targets.ethosu.rewrites.spare import TO_SPARE

__all__ = ["PARTS", "REWRITES", "TO_BE_SOUND", "TO_COME_EARLIER", "TO_COST_LESS", "TO_FIT", "TO_SPARE", "in_parts"]

REWRITES: tuple[Rewrite, ...] = (*TO_FIT, *TO_SPARE, *TO_COST_LESS, *TO_COME_EARLIER)
"""Rewrites that can be disabled."""
