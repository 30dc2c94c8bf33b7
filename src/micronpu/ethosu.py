"""Arm Ethos-U under the names that ExecuTorch users know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from micronpu.quantize.calibrate import calibrate_and_quantize
    from micronpu.quantize.config import QuantizationConfig
    from micronpu.targets.ethosu.backend import EthosUBackend, EthosUPartitioner
    from micronpu.targets.ethosu.options import EthosUCompileSpec
    from micronpu.targets.ethosu.quantizer import EthosUQuantizer

# Imported on first use: the quantizer and the back end need torch, which takes seconds to import.
_HOMES = {
    "EthosUBackend": "targets.ethosu.backend",
    "EthosUCompileSpec": "targets.ethosu.options",
    "EthosUPartitioner": "targets.ethosu.backend",
    "EthosUQuantizer": "targets.ethosu.quantizer",
    "QuantizationConfig": "quantize.config",
    "calibrate_and_quantize": "quantize.calibrate",
}

__all__ = [
    "EthosUBackend",
    "EthosUCompileSpec",
    "EthosUPartitioner",
    "EthosUQuantizer",
    "QuantizationConfig",
    "calibrate_and_quantize",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"micronpu.{_HOMES[name]}"), name)
