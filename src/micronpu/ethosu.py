"""Arm Ethos-U under the names that ExecuTorch users know."""

from micronpu.base.lazy import lazily

_COMPAT = (
    *("ArmPassPipelineConfig", "LeakyReLULoweringConfig", "QuantizeInfConfig", "SDPASafeSoftmaxGuardPolicy"),
    *("SoftmaxDecompositionConfig", "VelaExternalBlockPlacements"),
)

__all__, __dir__, __getattr__ = lazily(
    __name__, __file__, {name: f"from micronpu.compat import {name}" for name in _COMPAT}
)
