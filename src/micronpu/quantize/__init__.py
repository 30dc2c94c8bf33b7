"""Quantization of float programs: annotation derived from the operators, calibration, conversion."""

from micronpu.upstream.torch import register_quantized_operators

register_quantized_operators()
