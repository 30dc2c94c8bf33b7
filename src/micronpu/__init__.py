"""PyTorch models on the NPUs of microcontrollers.

program = micronpu.compile(model, example_inputs, target="imxrt700", calibration=batches)
program.report          # what runs where and why
program.save("kws.pte")
program.run(x)          # in the ExecuTorch runtime, on this machine
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from micronpu.base.errors import MicroNpuError
from micronpu.base.installed import VERSION
from micronpu.base.lazy import lazily

if TYPE_CHECKING:
    from micronpu.accuracy.blame import blame
    from micronpu.accuracy.evaluate import evaluate
    from micronpu.accuracy.fix import fix
    from micronpu.accuracy.numeric_gap import NumericGap
    from micronpu.compiler.compile import check_model as check
    from micronpu.compiler.compile import compile_model as compile
    from micronpu.compiler.program import CompiledProgram
    from micronpu.frontend.streaming import streaming
    from micronpu.recipes import (
        get_chip_recipe,
        get_corstone300_recipe,
        get_corstone320_recipe,
        get_imx93_recipe,
        get_imxrt700_recipe,
    )
    from micronpu.report.budgets import Budgets
    from micronpu.sparsity import Sparsified, SparsityOptions, sparsify

__version__ = VERSION
__all__ = [
    "Budgets",
    "CompiledProgram",
    "MicroNpuError",
    "NumericGap",
    "blame",
    "Sparsified",
    "SparsityOptions",
    "check",
    "compile",
    "evaluate",
    "fix",
    "get_chip_recipe",
    "get_corstone300_recipe",
    "get_corstone320_recipe",
    "get_imx93_recipe",
    "get_imxrt700_recipe",
    "sparsify",
    "streaming",
]

_HOMES = {
    "Budgets": "report.budgets",
    "NumericGap": "accuracy.numeric_gap",
    "CompiledProgram": "compiler.program",
    "blame": "accuracy.blame",
    "check": "compiler.compile:check_model",
    "compile": "compiler.compile:compile_model",
    "evaluate": "accuracy.evaluate",
    **{name: "sparsity" for name in ("Sparsified", "SparsityOptions", "sparsify")},
    "fix": "accuracy.fix",
    "streaming": "frontend.streaming",
    **{name: "recipes" for name in __all__ if name.endswith("_recipe")},
}

__getattr__ = lazily(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
