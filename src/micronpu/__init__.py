"""PyTorch models on the NPUs of microcontrollers.

program = micronpu.compile(model, example_inputs, target="imxrt700", calibration=batches)
program.report          # what runs where and why
program.save("kws.pte")
program.run(x)          # in the ExecuTorch runtime, on this machine
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from micronpu.errors import MicroNpuError

if TYPE_CHECKING:
    from micronpu.compiler.compile import check_model as check
    from micronpu.compiler.compile import compile_model as compile
    from micronpu.compiler.program import CompiledProgram
    from micronpu.recipes import (
        get_chip_recipe,
        get_corstone300_recipe,
        get_corstone320_recipe,
        get_imx93_recipe,
        get_imxrt700_recipe,
    )

__version__ = "0.1.0"
__all__ = [
    "CompiledProgram",
    "MicroNpuError",
    "check",
    "compile",
    "get_chip_recipe",
    "get_corstone300_recipe",
    "get_corstone320_recipe",
    "get_imx93_recipe",
    "get_imxrt700_recipe",
]

# Imported on first use: torch and ExecuTorch take seconds, which `micronpu --help` must not wait for.
_HOMES = {
    "CompiledProgram": ("micronpu.compiler.program", "CompiledProgram"),
    "check": ("micronpu.compiler.compile", "check_model"),
    "compile": ("micronpu.compiler.compile", "compile_model"),
    **{name: ("micronpu.recipes", name) for name in __all__ if name.endswith("_recipe")},
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module, attribute = _HOMES[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
