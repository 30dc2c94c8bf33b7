"""The names of `micronpu.neutron` and where each is defined: the one list, read by type checkers and by `base.lazy`."""

from micronpu.quantize.calibrate import calibrate_and_quantize as calibrate_and_quantize
from micronpu.quantize.config import QuantizationConfig as QuantizationConfig
from micronpu.targets.neutron.compat import NeutronBackend as NeutronBackend
from micronpu.targets.neutron.compat import NeutronCompileSpecBuilder as NeutronCompileSpecBuilder
from micronpu.targets.neutron.compat import NeutronEdgePassManager as NeutronEdgePassManager
from micronpu.targets.neutron.compat import NeutronPartitioner as NeutronPartitioner
from micronpu.targets.neutron.compat import NeutronQuantizer as NeutronQuantizer
from micronpu.targets.neutron.compat import generate_neutron_compile_spec as generate_neutron_compile_spec
from micronpu.targets.neutron.options import CustomDelegationOptions as CustomDelegationOptions
from micronpu.targets.neutron.options import NeutronOptions as NeutronOptions
from micronpu.targets.neutron.sdk import merge_kernel_selections as merge_kernel_selections
from micronpu.targets.neutron.target_spec import NeutronTargetSpec as NeutronTargetSpec
