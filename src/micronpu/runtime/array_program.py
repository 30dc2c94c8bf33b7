"""A compiled program for NumPy arrays, which imports torch only if the program needs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from micronpu.base.arrays import Array
from micronpu.program.pte import TensorValue
from micronpu.runtime.arguments import check_array
from micronpu.runtime.native import in_order
from micronpu.runtime.program import HostProgram


class ArrayProgram(HostProgram):
    """A `.pte` loaded for the host, run on NumPy arrays.

        program = ArrayProgram("kws.pte")
        (scores,) = program.run_arrays(features)

    The program is checked as any other, and uses the same kernels. torch is imported only if the program needs it: to
    record a profile, for bfloat16, for kernels of torch libraries and for other packages' delegates.
    """

    def run_arrays(self, *inputs: Array, method: str | None = None) -> tuple[Any, ...]:
        """Run a method once.

        Args:
            inputs: arrays of the shapes and types in `inputs`.
            method: one of `methods`; default: the loaded one.

        Returns:
            One value per output: a new array; bfloat16 becomes float32; numbers and None are unchanged.

        Raises:
            ModelError: inputs of another number, type or shape.
            PayloadError: the program fails.
        """
        name = self.method_name if method is None else method
        arguments = self._arguments(inputs, self._loaded_method(name), _laid_out)
        if self._isolated is not None:
            with self._lock:
                results = self._isolated.run(arguments, name, self._loaded_method(name).outputs, arrays=True)
                self._counts.called(name)
                return results
        if self._native is None:
            return self._run_with_torch(arguments, name)
        return tuple(self._run_native(arguments, name))

    def __enter__(self) -> ArrayProgram:
        return self

    def _run_with_torch(self, inputs: Sequence[Any], method: str) -> tuple[object, ...]:
        import torch

        def array_of(value: object) -> object:
            if not isinstance(value, torch.Tensor):
                return value
            return (value.float() if value.dtype is torch.bfloat16 else value).numpy()

        tensors = [torch.from_numpy(value) if isinstance(value, np.ndarray) else value for value in inputs]
        return tuple(map(array_of, super().run_in_order(*tensors, method=method)))


def _laid_out(program: str, position: int, array: Any, wanted: TensorValue) -> Array:
    """Check an array and return it in the program's order of axes, which the runtime does not rearrange."""
    check_array(program, position, array, wanted)
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    physical = np.require(native.transpose(wanted.dim_order), requirements=("C", "W"))
    return in_order(physical, array.shape, wanted.dim_order)
