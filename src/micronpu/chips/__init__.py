"""Chips as data: core, NPU, memories and targets. Nothing here imports torch."""

from micronpu.chips.chip import (
    ACTIVATIONS,
    CMSIS_NN,
    MEASURED,
    WEIGHTS,
    Chip,
    Chips,
    ChipSection,
    Memory,
    Npu,
    TargetEntry,
    load_chip,
    load_measured,
    shipped_chips,
    with_clock,
)

__all__ = [
    "ACTIVATIONS",
    "CMSIS_NN",
    "MEASURED",
    "WEIGHTS",
    "Chip",
    "Chips",
    "Memory",
    "Npu",
    "ChipSection",
    "TargetEntry",
    "load_chip",
    "load_measured",
    "shipped_chips",
    "with_clock",
]
