"""`NeutronTargetSpec.neutron_target_info`: fusable operators."""

from __future__ import annotations

from typing import Any

from micronpu.base.errors import MicroNpuError
from micronpu.frontend.importer import fused_kind
from micronpu.frontend.program import overload_name, value_of

_CLAMPS = ("relu", "relu6", "hardtanh", "clamp")
_PRODUCTS = ("linear", "addmm", "mm")
_CONVOLUTIONS = ("conv2d", "convolution")


class NeutronTargetNeutronC:
    """Activations that a convolution or linear layer can fuse.

    Operators of the exported program and of the edge dialect are treated alike; each method has both names that scripts
    use.
    """

    @staticmethod
    def is_supported_fused_activation__aten(node_: Any) -> bool:
        """True if the node is a clamp to bounds that its preceding operator can fuse: ReLU, ReLU6, -1 to 1.

        Sigmoid and tanh, which ExecuTorch's own backend includes, are separate operators here.
        """
        if overload_name(node_).split(".")[0].rstrip("_") not in _CLAMPS:
            return False
        try:
            return bool(fused_kind(node_))
        except MicroNpuError:
            return False

    @staticmethod
    def is_fusable_conv_or_linear__aten(node_: Any) -> bool:
        """True if the node is a linear layer or a 2-D convolution."""
        name = overload_name(node_).split(".")[0]
        return name in _PRODUCTS or (name in _CONVOLUTIONS and value_of(node_).dim() == 4)

    is_supported_fused_activation__edge = is_supported_fused_activation__aten
    is_fusable_conv_or_linear__edge = is_fusable_conv_or_linear__aten
