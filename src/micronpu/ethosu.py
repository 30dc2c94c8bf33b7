"""Arm Ethos-U under the names that ExecuTorch users know."""

from __future__ import annotations

from typing import TYPE_CHECKING

from micronpu._lazy import lazily

if TYPE_CHECKING:
    from micronpu.quantize.calibrate import calibrate_and_quantize
    from micronpu.quantize.config import QuantizationConfig
    from micronpu.targets.ethosu.backend import EthosUBackend, EthosUPartitioner
    from micronpu.targets.ethosu.options import EthosUCompileSpec
    from micronpu.targets.ethosu.quantizer import EthosUQuantizer

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

__getattr__ = lazily(__name__, _HOMES)
