"""NXP eIQ Neutron under the names that ExecuTorch users know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from micronpu.neutron.backend import NeutronBackend, NeutronEdgePassManager, NeutronPartitioner
    from micronpu.neutron.devices import NeutronTargetSpec
    from micronpu.neutron.kernels import merge_kernel_selections
    from micronpu.neutron.options import (
        CustomDelegationOptions,
        NeutronCompileOptions,
        NeutronCompileSpecBuilder,
        generate_neutron_compile_spec,
    )
    from micronpu.neutron.quantizer import NeutronQuantizer
    from micronpu.quantize.calibrate import calibrate_and_quantize
    from micronpu.quantize.config import QuantizationConfig

# Imported on first use: the quantizer and the back end need torch, which takes seconds to import.
_HOMES = {
    "CustomDelegationOptions": "neutron.options",
    "NeutronBackend": "neutron.backend",
    "NeutronCompileOptions": "neutron.options",
    "NeutronCompileSpecBuilder": "neutron.options",
    "NeutronEdgePassManager": "neutron.backend",
    "NeutronPartitioner": "neutron.backend",
    "NeutronQuantizer": "neutron.quantizer",
    "NeutronTargetSpec": "neutron.devices",
    "QuantizationConfig": "quantize.config",
    "calibrate_and_quantize": "quantize.calibrate",
    "generate_neutron_compile_spec": "neutron.options",
    "merge_kernel_selections": "neutron.kernels",
}

__all__ = [
    "CustomDelegationOptions",
    "NeutronBackend",
    "NeutronCompileOptions",
    "NeutronCompileSpecBuilder",
    "NeutronEdgePassManager",
    "NeutronPartitioner",
    "NeutronQuantizer",
    "NeutronTargetSpec",
    "QuantizationConfig",
    "calibrate_and_quantize",
    "generate_neutron_compile_spec",
    "merge_kernel_selections",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"micronpu.{_HOMES[name]}"), name)
