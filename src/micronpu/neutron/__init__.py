"""NXP eIQ Neutron under the names that ExecuTorch users know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from micronpu.neutron.backend import NeutronBackend, NeutronPartitioner
    from micronpu.neutron.devices import NeutronTargetSpec
    from micronpu.neutron.options import NeutronCompileSpecBuilder, generate_neutron_compile_spec
    from micronpu.neutron.quantizer import NeutronQuantizer, calibrate_and_quantize

# Imported on first use: the quantizer and the back end need torch, which takes seconds to import.
_HOMES = {
    "NeutronBackend": "backend",
    "NeutronCompileSpecBuilder": "options",
    "NeutronPartitioner": "backend",
    "NeutronQuantizer": "quantizer",
    "NeutronTargetSpec": "devices",
    "calibrate_and_quantize": "quantizer",
    "generate_neutron_compile_spec": "options",
}

__all__ = [
    "NeutronBackend",
    "NeutronCompileSpecBuilder",
    "NeutronPartitioner",
    "NeutronQuantizer",
    "NeutronTargetSpec",
    "calibrate_and_quantize",
    "generate_neutron_compile_spec",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
