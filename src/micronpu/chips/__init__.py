"""Chips as data: core, NPU, memories and the targets that they offer.  Nothing here imports torch."""

from micronpu.chips.chip import (
    CMSIS_NN,
    ETHOS_U,
    NEUTRON,
    Chip,
    EthosUNpu,
    Memory,
    NeutronNpu,
    Npu,
    TargetEntry,
    load_chip,
    load_chips,
)

__all__ = [
    "CMSIS_NN",
    "ETHOS_U",
    "NEUTRON",
    "Chip",
    "EthosUNpu",
    "Memory",
    "NeutronNpu",
    "Npu",
    "TargetEntry",
    "load_chip",
    "load_chips",
]
