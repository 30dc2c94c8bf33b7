"""Chips as data: core, NPU, memories and the targets that they offer.  Nothing here imports torch."""

from micronpu.soc.chip import Chip, Memory, Npu, TargetEntry, all_targets, find_target, load_chip, load_chips

__all__ = ["Chip", "Memory", "Npu", "TargetEntry", "all_targets", "find_target", "load_chip", "load_chips"]
