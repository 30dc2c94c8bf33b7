"""What a graph will cost on a chip.  Every figure here is an estimate and says what it rests on."""

from micronpu.estimate.memory import peak_activation_bytes
from micronpu.estimate.neutron import NeutronEstimate, OperationEstimate, estimate_neutron

__all__ = ["NeutronEstimate", "OperationEstimate", "estimate_neutron", "peak_activation_bytes"]
