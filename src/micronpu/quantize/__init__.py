"""Float programs to quantized programs: annotation built from the operators, calibration, conversion."""

import logging
import warnings

# torchao reports optional CUDA libraries that it cannot load and deprecations inside torch; neither is the user's.
_disabled = logging.root.manager.disable
logging.disable(logging.WARNING)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torchao.quantization.pt2e  # noqa: F401
logging.disable(_disabled)
