"""The names of `micronpu.ethosu` and where each is defined: the one list, read by type checkers and by `base.lazy`."""

from micronpu.quantize.calibrate import calibrate_and_quantize as calibrate_and_quantize
from micronpu.quantize.config import QuantizationConfig as QuantizationConfig
from micronpu.quantize.config import get_symmetric_a8w4_quantization_config as get_symmetric_a8w4_quantization_config
from micronpu.quantize.config import get_symmetric_a16w8_quantization_config as get_symmetric_a16w8_quantization_config
from micronpu.quantize.config import get_symmetric_quantization_config as get_symmetric_quantization_config
from micronpu.quantize.config import get_uint8_io_quantization_config as get_uint8_io_quantization_config
from micronpu.targets.ethosu.compat import EthosUBackend as EthosUBackend
from micronpu.targets.ethosu.compat import EthosUCompileSpec as EthosUCompileSpec
from micronpu.targets.ethosu.compat import EthosUPartitioner as EthosUPartitioner
from micronpu.targets.ethosu.compat import EthosUQuantizer as EthosUQuantizer
from micronpu.targets.ethosu.options import EthosUOptions as EthosUOptions
