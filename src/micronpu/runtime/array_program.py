"""A compiled program for NumPy arrays, which needs no torch as long as the program does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from micronpu.base.errors import ModelError
from micronpu.runtime.native import NativeError, NativeMethod, has_all, has_arrays
from micronpu.runtime.operators import needs_torch
from micronpu.runtime.plan import check_plan
from micronpu.runtime.plugin import load_plugin
from micronpu.runtime.program import EXECUTORCH, HostProgram
from micronpu.runtime.pte import TensorValue

if TYPE_CHECKING:
    import torch

Array = np.ndarray[Any, Any]

_DELEGATES = frozenset(("NeutronBackend", "EthosUBackend"))
"""What the plug-in registers; others come with ExecuTorch's Python interface."""


class ArrayProgram(HostProgram):
    """A `.pte` loaded for the host, run on NumPy arrays.

        program = ArrayProgram("kws.pte")
        (scores,) = program.run_arrays(features)

    The program is checked as any other, and computes with the same kernels. torch is imported only where the program
    needs it: to record a profile, in a process of its own, for bfloat16, for kernels that a library for torch
    registers and for the delegates of others.
    """

    _native: NativeMethod | None = None

    @property
    def is_native(self) -> bool:
        """Whether the program runs without torch."""
        return self._native is not None

    def run_arrays(self, *inputs: Array) -> tuple[Any, ...]:
        """Run the method once.

        Args:
            inputs: arrays of the shapes and types in `inputs`.

        Returns:
            One for each output: a new array; bfloat16 becomes float32; numbers and None stay what they are.

        Raises:
            ModelError: inputs of another number, type or shape.
            PayloadError: the program fails.
        """
        self._check_count(inputs)
        arguments = [
            array if wanted is None else self._laid_out(position, array, wanted)
            for position, (array, wanted) in enumerate(zip(inputs, self._summary.inputs, strict=True))
        ]
        if self._native is None:
            return self._run_with_torch(arguments)
        try:
            with EXECUTORCH:
                if self._native.is_closed:
                    raise ModelError(f"{self._name} is closed.", hint="load it again with ArrayProgram")
                return tuple(self._native.run(arguments))
        except NativeError as error:
            raise self._failure(f"{self._name} failed in method {self.method_name!r}", error) from error

    def run(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run the method once on torch's tensors; see `HostProgram.run`."""
        if self._native is None:
            return super().run(*inputs)
        import torch

        return tuple(map(torch.from_numpy, self.run_arrays(*(a.numpy() for a in self._arguments(inputs)))))

    def reset(self) -> None:
        """Sets the program's states back to their first values; see `HostProgram.reset`."""
        if self._native is None:
            super().reset()
            return
        self._check_states()
        try:
            with EXECUTORCH, self._plugin.mode(self._mode):
                if self._native.is_closed:
                    raise ModelError(f"{self._name} is closed.", hint="load it again with ArrayProgram")
                self._native.close()
                self._native = NativeMethod(self._plugin, self._data, self._summary)
        except NativeError as error:
            raise self._failure(f"{self._name} cannot be loaded", error) from error

    def __enter__(self) -> ArrayProgram:
        return self

    def close(self) -> None:
        """Free the program now; running it afterwards is an error. Safe to call twice."""
        if self._native is not None:
            with EXECUTORCH:
                self._native.close()
        super().close()

    def _start(self) -> None:
        summary = self._summary
        if (
            self.options.profile
            or not _DELEGATES.issuperset(summary.delegates)
            or not has_arrays(summary)
            or needs_torch(summary.operators)
        ):
            return super()._start()
        self._plugin = load_plugin(torch=False)
        if not has_all(self._plugin, summary.operators):
            return super()._start()  # which knows more kernels, or says which ones are missing
        check_plan(self._data, self._name, self.method_name)
        try:
            with EXECUTORCH, self._plugin.mode(self._mode, self.checks):
                self._native = NativeMethod(self._plugin, self._data, summary)
        except NativeError as error:
            raise self._failure(f"{self._name} cannot be loaded", error) from error

    def _run_with_torch(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        import torch

        def array_of(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            return (value.float() if value.dtype is torch.bfloat16 else value).numpy()

        tensors = [torch.from_numpy(value) if isinstance(value, np.ndarray) else value for value in inputs]
        return tuple(map(array_of, super().run(*tensors)))

    def _laid_out(self, position: int, array: Any, wanted: TensorValue) -> Array:
        """The array in the program's order of axes, which the runtime does not rearrange; checked."""
        where = f"Input {position} of {self._name_inside}"
        if not isinstance(array, np.ndarray):
            raise ModelError(
                f"{where} must be an array, but a {type(array).__name__} was given.", hint="numpy.asarray(...)"
            )
        self._check_type(where, array.dtype.name, array.shape, wanted, f"array.astype(numpy.{wanted.dtype})")
        native = array.astype(array.dtype.newbyteorder("="), copy=False)
        order = wanted.dim_order
        inverse = sorted(range(len(order)), key=order.__getitem__)
        physical = np.require(native.transpose(order), requirements=("C", "W"))
        return physical.reshape([array.shape[axis] for axis in order]).transpose(inverse)
