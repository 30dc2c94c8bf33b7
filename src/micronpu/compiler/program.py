"""What a compilation returns."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from micronpu.files import write_file
from micronpu.partition.device import CompiledPartition
from micronpu.report.delegation import DelegationReport

if TYPE_CHECKING:
    from rich.console import RenderableType

    from micronpu.quantize.borders import IntegerBorders
    from micronpu.runtime import HostProgram


@dataclass
class CompiledProgram:
    """A finished program.

    Attributes:
        buffer: the bytes of the ``.pte``.
        report: what runs where and why.
        partitions: the delegated parts with their graphs.
        data_files: what else a device needs, by file name: blocks that the options place outside of the program.
        quantized: the quantized model, to be compared with; ``quantized(*inputs)`` runs it in eager mode.
        seconds: wall time per step of the compilation.
        borders: what inputs and outputs mean where they are integers, with ``quantize`` and ``dequantize``; None where
            they are floats.
    """

    buffer: bytes
    report: DelegationReport
    partitions: tuple[CompiledPartition, ...]
    quantized: torch.nn.Module
    seconds: dict[str, float] = field(default_factory=dict)
    data_files: dict[str, bytes] = field(default_factory=dict)
    borders: IntegerBorders | None = None
    _host: dict[bool, HostProgram] = field(default_factory=dict, repr=False)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the ``.pte``, and the data files beside it; a file is replaced only when the new one is complete."""
        for name, data in self.data_files.items():
            write_file(Path(path).parent / name, data)
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

    def __rich__(self) -> RenderableType:
        from micronpu.report.terminal import program_view

        return program_view(self.report, self.seconds)

    def __str__(self) -> str:
        return f"{self.report.summary()}; .pte of {len(self.buffer):,} bytes"
