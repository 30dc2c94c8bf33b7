"""NXP eIQ Neutron under the names that ExecuTorch users know."""

from __future__ import annotations

from typing import TYPE_CHECKING

from micronpu.base.lazy import lazily

if TYPE_CHECKING:
    from micronpu.quantize.calibrate import calibrate_and_quantize
    from micronpu.quantize.config import QuantizationConfig
    from micronpu.targets.neutron.backend import NeutronBackend, NeutronEdgePassManager, NeutronPartitioner
    from micronpu.targets.neutron.edge import (
        RemoveAdditionalQDQClustersPass,
        RemoveIOQuantOpsPass,
        core_aten_ops_exception_list,
    )
    from micronpu.targets.neutron.kernels import merge_kernel_selections
    from micronpu.targets.neutron.options import (
        CustomDelegationOptions,
        NeutronCompileOptions,
        NeutronCompileSpecBuilder,
        generate_neutron_compile_spec,
    )
    from micronpu.targets.neutron.quantizer import NeutronQuantizer
    from micronpu.targets.neutron.target_spec import NeutronHWVersion, NeutronTargetSpec

_HOMES = {
    "CustomDelegationOptions": "targets.neutron.options",
    "NeutronBackend": "targets.neutron.backend",
    "NeutronCompileOptions": "targets.neutron.options",
    "NeutronCompileSpecBuilder": "targets.neutron.options",
    "NeutronEdgePassManager": "targets.neutron.backend",
    "NeutronHWVersion": "targets.neutron.target_spec",
    "NeutronPartitioner": "targets.neutron.backend",
    "NeutronQuantizer": "targets.neutron.quantizer",
    "NeutronTargetSpec": "targets.neutron.target_spec",
    "QuantizationConfig": "quantize.config",
    "RemoveAdditionalQDQClustersPass": "targets.neutron.edge",
    "RemoveIOQuantOpsPass": "targets.neutron.edge",
    "calibrate_and_quantize": "quantize.calibrate",
    "core_aten_ops_exception_list": "targets.neutron.edge",
    "generate_neutron_compile_spec": "targets.neutron.options",
    "merge_kernel_selections": "targets.neutron.kernels",
}

__all__ = [
    "CustomDelegationOptions",
    "NeutronBackend",
    "NeutronCompileOptions",
    "NeutronCompileSpecBuilder",
    "NeutronEdgePassManager",
    "NeutronHWVersion",
    "NeutronPartitioner",
    "NeutronQuantizer",
    "NeutronTargetSpec",
    "QuantizationConfig",
    "RemoveAdditionalQDQClustersPass",
    "RemoveIOQuantOpsPass",
    "calibrate_and_quantize",
    "core_aten_ops_exception_list",
    "generate_neutron_compile_spec",
    "merge_kernel_selections",
]

__getattr__ = lazily(__name__, _HOMES)
