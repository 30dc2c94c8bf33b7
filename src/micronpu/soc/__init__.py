"""Chips as data: core, NPU, memories and the targets that they offer.  Nothing here imports torch."""

from micronpu.soc.chip import (
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
from micronpu.soc.targets import Target, all_chips, all_targets, find_target

__all__ = [
    "CMSIS_NN",
    "ETHOS_U",
    "NEUTRON",
    "Chip",
    "EthosUNpu",
    "Memory",
    "NeutronNpu",
    "Npu",
    "Target",
    "TargetEntry",
    "all_chips",
    "all_targets",
    "find_target",
    "load_chip",
    "load_chips",
]
