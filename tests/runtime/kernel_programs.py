"""`.pte` programs that call `cortex_m::*` kernels and do nothing else, written without ExecuTorch's compiler."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from executorch.exir._serialize._program import PTEFile, serialize_pte_binary
from executorch.exir.schema import (
    AllocationDetails,
    Bool,
    Chain,
    ContainerMetadata,
    Double,
    EValue,
    ExecutionPlan,
    Instruction,
    Int,
    IntList,
    KernelCall,
    Null,
    Operator,
    Program,
    SubsegmentOffsets,
    Tensor,
    TensorShapeDynamism,
)
from executorch.exir.tensor import dim_order_from_stride, scalar_type_enum
from torch._subclasses import FakeTensorMode
from torch.utils import _pytree as pytree

ALIGNMENT = 16


class _Writer:
    def __init__(self) -> None:
        self.values: list[EValue] = []
        self.operators: list[Operator] = []
        self.instructions: list[Instruction] = []
        self.inputs: list[int] = []
        self.outputs: list[int] = []
        self.memory = 0

    def place(self, value: Any) -> int:
        self.values.append(EValue(value))
        return len(self.values) - 1

    def tensor(self, like: torch.Tensor) -> int:
        """A tensor in memory of its own."""
        offset = self.memory
        self.memory += math.ceil(like.numel() * like.element_size() / ALIGNMENT) * ALIGNMENT
        return self.place(
            Tensor(
                scalar_type=scalar_type_enum(like.dtype),
                storage_offset=0,
                sizes=list(like.shape),
                dim_order=list(dim_order_from_stride(like.stride())),
                requires_grad=False,
                layout=0,
                data_buffer_idx=0,
                allocation_info=AllocationDetails(1, offset & 0xFFFFFFFF, offset >> 32),
                shape_dynamism=TensorShapeDynamism.STATIC,
            )
        )

    def argument(self, given: Any) -> int:
        if isinstance(given, torch.Tensor):
            self.inputs.append(self.tensor(given))
            return self.inputs[-1]
        if isinstance(given, (list, tuple)):
            return self.place(IntList([self.place(Int(number)) for number in given]))
        if isinstance(given, torch.dtype):
            return self.place(Int(int(scalar_type_enum(given))))
        kinds = {bool: Bool, int: Int, float: Double}
        return self.place(Null() if given is None else kinds[type(given)](given))

    def call(self, operator: str, arguments: tuple[Any, ...]) -> None:
        name = Operator(f"cortex_m::{operator}", "out")
        if name not in self.operators:
            self.operators.append(name)
        with FakeTensorMode() as fake:
            shapes = [fake.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in arguments]
            result = getattr(torch.ops.cortex_m, operator)(*shapes)
        places = [self.argument(a) for a in arguments]
        out = self.tensor(result)
        self.outputs.append(out)
        index = self.operators.index(name)
        self.instructions.append(Instruction(KernelCall(index, [*places, out, out])))


def program_of_calls(calls: Sequence[tuple[str, tuple[Any, ...]]]) -> bytes:
    """A program that makes each call and returns all results; its inputs are the tensors among the arguments.

    Args:
        calls: operator without `cortex_m::`, and arguments in the order of its schema.
    """
    writer = _Writer()
    for operator, arguments in calls:
        writer.call(operator, arguments)
    given = pytree.tree_structure((tuple(0 for _ in writer.inputs), {}))
    results = pytree.tree_structure(tuple(0 for _ in writer.outputs))
    plan = ExecutionPlan(
        name="forward",
        container_meta_type=ContainerMetadata(pytree.treespec_dumps(given), pytree.treespec_dumps(results)),
        values=writer.values,
        inputs=writer.inputs,
        outputs=writer.outputs,
        chains=[Chain([], [], writer.instructions, None)],
        operators=writer.operators,
        delegates=[],
        non_const_buffer_sizes=[0, writer.memory],
    )
    program = Program(0, [plan], [], [], [], SubsegmentOffsets(0, [0]))
    return bytes(serialize_pte_binary(PTEFile(program)))
