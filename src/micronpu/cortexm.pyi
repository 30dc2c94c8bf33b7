"""The names of `micronpu.cortexm` and where each is defined: the one list, read by type checkers and by `base.lazy`."""

from micronpu.quantize.calibrate import calibrate_and_quantize as calibrate_and_quantize
from micronpu.quantize.config import QuantizationConfig as QuantizationConfig
from micronpu.recipes.core_passes import CortexMPassManager as CortexMPassManager
from micronpu.recipes.core_passes import cortex_m_edge_compile_config as cortex_m_edge_compile_config
from micronpu.targets.cortexm.compat import INT8_PER_CHANNEL_CONFIG as INT8_PER_CHANNEL_CONFIG
from micronpu.targets.cortexm.compat import INT8_PER_TENSOR_CONFIG as INT8_PER_TENSOR_CONFIG
from micronpu.targets.cortexm.compat import CortexM as CortexM
from micronpu.targets.cortexm.compat import CortexMQuantizer as CortexMQuantizer
from micronpu.targets.cortexm.compat import CortexMTargetConfig as CortexMTargetConfig
from micronpu.targets.cortexm.options import CortexMOptions as CortexMOptions
