"""What a compilation returns."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from micronpu.errors import MicroNpuError, ModelError
from micronpu.neutron.compile import CompiledPartition
from micronpu.partition.report import DelegationReport

if TYPE_CHECKING:
    from micronpu.runtime import HostProgram


@dataclass
class CompiledProgram:
    """A finished program.

    Attributes:
        buffer: the bytes of the ``.pte``.
        report: what runs where and why.
        partitions: the delegated parts with their graphs and LiteRT models.
        quantized: the quantized model, to be compared with; ``quantized(*inputs)`` runs it in eager mode.
        seconds: wall time per step of the compilation.
    """

    buffer: bytes
    report: DelegationReport
    partitions: tuple[CompiledPartition, ...]
    quantized: torch.nn.Module
    seconds: dict[str, float] = field(default_factory=dict)
    _host: dict[bool, HostProgram] = field(default_factory=dict, repr=False)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the ``.pte``; an existing file is replaced only when the new one is complete."""
        return write_file(path, self.buffer)

    def run(self, *inputs: Any, fast: bool = False) -> Any:
        """Runs the program in the ExecuTorch runtime of this machine, the NPU's part in the simulator.

        Args:
            inputs: tensors with shape and dtype of the example inputs.
            fast: optimised kernels, which may differ by one step from the bit-exact ones.

        Returns:
            The output, or a tuple where there are several.
        """
        from micronpu.runtime import HostProgram, RunOptions

        if fast not in self._host:
            self._host[fast] = HostProgram(self.buffer, RunOptions(fast=fast))
        results = self._host[fast].run(*inputs)
        return results[0] if len(results) == 1 else results

    def __str__(self) -> str:
        return f"{self.report.summary()}; .pte of {len(self.buffer):,} bytes"


def write_file(path: str | os.PathLike[str], data: bytes) -> Path:
    """Writes to a temporary name and renames, so that no half-written file is ever seen."""
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise ModelError(f"{target} cannot be written: {error.strerror}.", hint="another folder") from error
    return target


__all__ = ["CompiledProgram", "MicroNpuError", "write_file"]
