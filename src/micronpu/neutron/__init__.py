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
    from micronpu.neutron.quantizer import NeutronQuantizer, calibrate_and_quantize
    from micronpu.quantize.config import QuantizationConfig

# Imported on first use: the quantizer and the back end need torch, which takes seconds to import.
_HOMES = {
    "CustomDelegationOptions": "options",
    "NeutronBackend": "backend",
    "NeutronCompileOptions": "options",
    "NeutronCompileSpecBuilder": "options",
    "NeutronEdgePassManager": "backend",
    "NeutronPartitioner": "backend",
    "NeutronQuantizer": "quantizer",
    "NeutronTargetSpec": "devices",
    "QuantizationConfig": "quantizer",
    "calibrate_and_quantize": "quantizer",
    "generate_neutron_compile_spec": "options",
    "merge_kernel_selections": "kernels",
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

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
