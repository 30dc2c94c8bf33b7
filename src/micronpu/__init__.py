"""PyTorch models on the NPUs of microcontrollers.

program = micronpu.compile(model, example_inputs, target="imxrt700", calibration=batches)
program.report          # what runs where and why
program.save("kws.pte")
program.run(x)          # in the ExecuTorch runtime, on this machine
"""

from micronpu.base.installed import VERSION
from micronpu.base.lazy import lazily

__version__ = VERSION
__all__, __dir__, __getattr__ = lazily(__name__, __file__)
