"""Runs emitted modules with the integer references of the `cortex_m::*` operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tests.cortexm_reference import REFERENCES
from torch import fx

from micronpu.partition.kernels import CoreKernel

Array = np.ndarray[Any, Any]


class IntegerInterpreter(fx.Interpreter):
    """Executes a module; ExecuTorch's own eager form of some `cortex_m::*` operators computes in floating point."""

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        overload = target._op if type(target).__name__ == "EdgeOpOverload" else target
        name = overload._schema.name if isinstance(overload, torch._ops.OpOverload) else ""
        name = target.qualified if isinstance(target, CoreKernel) else name
        if not name.startswith("cortex_m::"):
            return super().call_function(target, args, kwargs)
        arrays = [a.numpy() if isinstance(a, torch.Tensor) else _dtype(a) for a in args]
        result = REFERENCES[name.removeprefix("cortex_m::")](*arrays, **kwargs)
        return torch.from_numpy(np.array(result, order="C"))


def _dtype(argument: Any) -> Any:
    names = {torch.int8: np.int8, torch.int16: np.int16}
    return names.get(argument, argument) if isinstance(argument, torch.dtype) else argument


def run_emitted(module: fx.GraphModule, inputs: Sequence[Array]) -> list[Array]:
    """Outputs of an emitted module."""
    results = IntegerInterpreter(module).run(*(torch.from_numpy(np.array(x, order="C")) for x in inputs))
    return [r.numpy() for r in results]
