"""Float programs to quantized programs: annotation built from the operators, calibration, conversion."""

import torch.ao.quantization.fx._decomposed  # noqa: F401  (registers the operators of quantized programs)
