"""The names of `micronpu.compat` and where each is defined: the one list, read by type checkers and by `base.lazy`."""

from micronpu.targets.ethosu.compat import ArmPassPipelineConfig as ArmPassPipelineConfig
from micronpu.targets.ethosu.compat import EthosUCompileSpec as EthosUCompileSpec
from micronpu.targets.ethosu.compat import LeakyReLULoweringConfig as LeakyReLULoweringConfig
from micronpu.targets.ethosu.compat import QuantizeInfConfig as QuantizeInfConfig
from micronpu.targets.ethosu.compat import SDPASafeSoftmaxGuardPolicy as SDPASafeSoftmaxGuardPolicy
from micronpu.targets.ethosu.compat import SoftmaxDecompositionConfig as SoftmaxDecompositionConfig
from micronpu.targets.ethosu.compat import TOSAQuantizationConfig as TOSAQuantizationConfig
from micronpu.targets.ethosu.compat import VelaExternalBlockPlacements as VelaExternalBlockPlacements
from micronpu.targets.neutron.compat import NeutronCompileSpecBuilder as NeutronCompileSpecBuilder
from micronpu.targets.neutron.compat import RemoveAdditionalQDQClustersPass as RemoveAdditionalQDQClustersPass
from micronpu.targets.neutron.compat import RemoveIOQuantOpsPass as RemoveIOQuantOpsPass
from micronpu.targets.neutron.compat import core_aten_ops_exception_list as core_aten_ops_exception_list
from micronpu.targets.neutron.compat import default_preserve_ops as default_preserve_ops
from micronpu.targets.neutron.compat import generate_neutron_compile_spec as generate_neutron_compile_spec
from micronpu.targets.neutron.target_spec import NeutronHWVersion as NeutronHWVersion
