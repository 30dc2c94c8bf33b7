"""Chips as data: core, NPU, memories and the targets that they offer.  Nothing here imports torch."""

from micronpu.chips.chip import (
    CMSIS_NN,
    NPU_FIELDS,
    Chip,
    Chips,
    Memory,
    Npu,
    TargetEntry,
    load_chip,
    shipped_chips,
)
from micronpu.chips.section import ChipSection

__all__ = [
    "CMSIS_NN",
    "NPU_FIELDS",
    "Chip",
    "Chips",
    "Memory",
    "Npu",
    "ChipSection",
    "TargetEntry",
    "load_chip",
    "shipped_chips",
]
