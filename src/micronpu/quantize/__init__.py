"""Float programs to quantized programs: annotation built from the operators, calibration, conversion."""

from micronpu.upstream.torch import register_quantized_operators

register_quantized_operators()
