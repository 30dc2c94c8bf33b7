"""Arm Ethos-U under the names that ExecuTorch users know."""

from __future__ import annotations

from typing import TYPE_CHECKING

from micronpu.base.lazy import lazily

if TYPE_CHECKING:
    from micronpu.quantize.calibrate import calibrate_and_quantize
    from micronpu.quantize.config import (
        QuantizationConfig,
        get_symmetric_a8w4_quantization_config,
        get_symmetric_a16w8_quantization_config,
        get_symmetric_quantization_config,
    )
    from micronpu.targets.ethosu.backend import EthosUBackend, EthosUPartitioner
    from micronpu.targets.ethosu.options import EthosUCompileSpec, VelaExternalBlockPlacements
    from micronpu.targets.ethosu.pipeline_config import (
        ArmPassPipelineConfig,
        LeakyReLULoweringConfig,
        QuantizeInfConfig,
        SDPASafeSoftmaxGuardPolicy,
        SoftmaxDecompositionConfig,
    )
    from micronpu.targets.ethosu.quantizer import EthosUQuantizer

_HOMES = {
    "ArmPassPipelineConfig": "targets.ethosu.pipeline_config",
    "EthosUBackend": "targets.ethosu.backend",
    "EthosUCompileSpec": "targets.ethosu.options",
    "EthosUPartitioner": "targets.ethosu.backend",
    "EthosUQuantizer": "targets.ethosu.quantizer",
    "LeakyReLULoweringConfig": "targets.ethosu.pipeline_config",
    "QuantizationConfig": "quantize.config",
    "QuantizeInfConfig": "targets.ethosu.pipeline_config",
    "SDPASafeSoftmaxGuardPolicy": "targets.ethosu.pipeline_config",
    "SoftmaxDecompositionConfig": "targets.ethosu.pipeline_config",
    "VelaExternalBlockPlacements": "targets.ethosu.options",
    "calibrate_and_quantize": "quantize.calibrate",
    "get_symmetric_a16w8_quantization_config": "quantize.config",
    "get_symmetric_a8w4_quantization_config": "quantize.config",
    "get_symmetric_quantization_config": "quantize.config",
}

__all__ = [
    "ArmPassPipelineConfig",
    "EthosUBackend",
    "EthosUCompileSpec",
    "EthosUPartitioner",
    "EthosUQuantizer",
    "LeakyReLULoweringConfig",
    "QuantizationConfig",
    "QuantizeInfConfig",
    "SDPASafeSoftmaxGuardPolicy",
    "SoftmaxDecompositionConfig",
    "VelaExternalBlockPlacements",
    "calibrate_and_quantize",
    "get_symmetric_a16w8_quantization_config",
    "get_symmetric_a8w4_quantization_config",
    "get_symmetric_quantization_config",
]

__getattr__ = lazily(__name__, _HOMES)
