"""Float programs to quantized programs: annotation built from the operators, calibration, conversion."""

from micronpu.quantize.shims import import_torchao

import_torchao()
