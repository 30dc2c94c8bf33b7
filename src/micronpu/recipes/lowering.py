"""The lowering part of a recipe: partitioners that put finished calls into the program before ExecuTorch lowers it.

ExecuTorch asks every partitioner of a list, in its order, to prepare the ATen program before it decomposes anything.
That is where these do their work, by the code of `micronpu.compile`: the big graph never goes through ExecuTorch's
passes, no operator has to be preserved from its decompositions, and what the NPU leaves is there as the model has it
for the core, which comes next in the list.
"""

from __future__ import annotations

from typing import Any

import torch
from executorch.exir import EdgeProgramManager
from executorch.exir.backend.partitioner import Partitioner, PartitionResult
from executorch.exir.delegate import executorch_call_delegate
from executorch.export import LoweringRecipe
from torch.export import ExportedProgram
from torch.fx import GraphModule

from micronpu.base.quiet import quiet
from micronpu.chips.core import Core
from micronpu.compiler.host import host_part
from micronpu.frontend.export import check_static
from micronpu.frontend.exported import graph_module
from micronpu.frontend.integers import IntegerBorders, integer_borders, integer_states
from micronpu.frontend.states import hold, lift, states_of
from micronpu.partition.device import CompiledPartition, Device
from micronpu.partition.lower import with_delegates
from micronpu.quantize.config import Borders
from micronpu.report.delegation import DelegationReport
from micronpu.targets.registry import FAMILIES, core_device
from micronpu.upstream.executorch import edge_config


class OutliningPartitioner(Partitioner):
    """What an NPU runs, as finished delegate calls, and what a core computes in int8, as calls of CMSIS-NN's kernels.

    Args:
        device: the NPU, or the core alone, with its options.  A core beside an NPU computes what that leaves.
        io: type of the integers that the finished program takes and gives, for which the quantizer needs `set_io`;
            None for floats.

    Attributes:
        borders: what the integers of the last program mean, or None where it takes and gives floats.
        report: what runs where and why in the last program, or None before there was one; that of a core behind an
            NPU is the NPU's affair.
        partitions: the delegated parts of the last program.
    """

    def __init__(self, device: Device, *, io: Borders | None = None) -> None:
        super().__init__()
        # What stays on the host has quantize and dequantize at its border: this registers their out variants.
        import executorch.kernels.quantized  # noqa: F401

        self.device = device
        self.io = io
        self.borders: IntegerBorders | None = None
        self.report: DelegationReport | None = None
        self.partitions: tuple[CompiledPartition, ...] = ()

    def transform_for_pre_decomposition(self, exported_program: ExportedProgram) -> ExportedProgram:
        """The program with calls in the place of what they compute."""
        with quiet():
            return self.outlined(lift(graph_module(exported_program)), examples_of(exported_program))

    def outlined(self, given: GraphModule, examples: tuple[torch.Tensor, ...]) -> ExportedProgram:
        """The same of a quantized module, in place.

        Args:
            examples: inputs of the shapes that it takes.
        """
        with quiet():
            module = integer_states(given)
            check_static(module)
            self.borders = None if self.io is None else integer_borders(module, as_bytes=self.io == "uint8")
            if self.borders is not None:
                examples = self.borders.quantize(examples)
            host = host_part(module, self.device, borders=self.borders)
            self.partitions = host.partitions
            self.report = None if _is_behind_an_npu(module) else host.report
            hold(host.module, states_of(module))
            return torch.export.export(with_delegates(host.module), examples)

    def ops_to_not_decompose(self, ep: ExportedProgram) -> tuple[list[Any], Any]:
        """None: what is left is for the host."""
        return [], None

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Nothing: all is partitioned by now."""
        return PartitionResult(tagged_exported_program=exported_program, partition_tags={})


def _is_behind_an_npu(module: GraphModule) -> bool:
    return any(n.target is executorch_call_delegate for n in module.graph.nodes)


class CorePartitioner(OutliningPartitioner):
    """What a Cortex-M core computes in int8, as calls of CMSIS-NN's kernels; alone, or behind the NPU's partitioner."""

    def __init__(self, core: Core) -> None:
        super().__init__(core_device(core))


def core_of(partitioner: Partitioner) -> Core | None:
    """The core that a partitioner writes kernels for; None for none, and for a partitioner that is not one of these."""
    return partitioner.device.core if isinstance(partitioner, OutliningPartitioner) else None


def plan_scratch(edge: EdgeProgramManager) -> list[Any]:
    """Makes planned memory of the scratch tensors of CMSIS-NN's kernels; for ``edge_manager_transform_passes``."""
    for family in FAMILIES.values():
        family.plan_scratch(edge)
    return []


def examples_of(program: ExportedProgram) -> tuple[torch.Tensor, ...]:
    """Inputs of the shapes that a program takes."""
    if program.example_inputs:
        return tuple(program.example_inputs[0])
    given = set(program.graph_signature.user_inputs)
    values = (n.meta["val"] for n in program.graph.nodes if n.op == "placeholder" and n.name in given)
    return tuple(torch.zeros(v.shape, dtype=v.dtype).to(memory_format=layout_of(v)) for v in values)


def layout_of(value: torch.Tensor) -> torch.memory_format:
    """The order of a tensor's axes in memory."""
    channels_last = value.dim() == 4 and not value.is_contiguous()
    return torch.channels_last if channels_last else torch.contiguous_format


def lowering(partitioner: Partitioner, callbacks: list[Any]) -> LoweringRecipe:
    """The lowering recipe of a partitioner.

    Args:
        callbacks: called with the lowered program, in a stage of their own.
    """
    return LoweringRecipe(
        partitioners=[partitioner],
        edge_manager_transform_passes=callbacks or None,
        # What stays on the host may mix dtypes in a way that ExecuTorch's check of the edge dialect refuses.
        edge_compile_config=edge_config(),
    )
