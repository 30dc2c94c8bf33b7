"""The operators `cortex_m::*` of ExecuTorch, without the rest of its back end for Cortex-M.

The module that defines them reads a few functions and two numbers from packages that import ExecuTorch's back end for
Arm's NPUs, and with it `tosa_serializer`, which a default installation does not have and no Cortex-M needs.
"""

from __future__ import annotations

import importlib
import sys
import threading
from types import ModuleType

_HOME = "executorch.backends.cortex_m"
_OPERATORS = f"{_HOME}.ops.operators"
_LOCK = threading.Lock()
SOFTMAX_GRID = {"CMSIS_SOFTMAX_SCALE": 1 / 256, "CMSIS_SOFTMAX_ZERO_POINT": -128}
"""What the operators take from ExecuTorch's `quantization_configs`: the grid of the results of CMSIS-NN's softmax."""


def define_operators() -> None:
    """Makes `torch.ops.cortex_m` known, once.

    Seen with ExecuTorch 1.5.1. Its two packages stand empty for as long as the module of the operators is read, so
    that their own `__init__` is not run; whoever imports them later gets them whole.
    """
    if _OPERATORS in sys.modules:
        return
    with _LOCK:
        if _OPERATORS in sys.modules:
            return
        home = importlib.import_module(_HOME)
        passes, quantizer = (f"{_HOME}.{name}" for name in ("passes", "quantizer"))
        grid = f"{quantizer}.quantization_configs"
        if passes in sys.modules or quantizer in sys.modules:  # on their way, or there
            importlib.import_module(_OPERATORS)
            return
        places = {
            name: [f"{place}/{name.rpartition('.')[2]}" for place in home.__path__] for name in (passes, quantizer)
        }
        empty = {name: ModuleType(name) for name in (passes, quantizer, grid)}
        for name, place in places.items():
            empty[name].__path__ = place
        vars(empty[grid]).update(SOFTMAX_GRID)
        sys.modules.update(empty)
        try:
            importlib.import_module(_OPERATORS)
        finally:
            for name in [m for m in sys.modules if m.startswith((passes, quantizer))]:
                del sys.modules[name]
