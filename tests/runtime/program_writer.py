"""`.pte` programs that call kernels or a delegate and do nothing else, written without ExecuTorch's compiler.

Its own schema and serializer make the bytes; what its compiler makes of such programs is tested in `tests/compile`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from executorch.exir._serialize._program import PTEFile, serialize_pte_binary
from executorch.exir.schema import (
    AllocationDetails,
    BackendDelegate,
    BackendDelegateDataReference,
    BackendDelegateInlineData,
    Bool,
    Chain,
    ContainerMetadata,
    DataLocation,
    DelegateCall,
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


class Writer:
    """One method; every tensor has memory of its own."""

    def __init__(self) -> None:
        self.values: list[EValue] = []
        self.operators: list[Operator] = []
        self.instructions: list[Instruction] = []
        self.inputs: list[int] = []
        self.outputs: list[int] = []
        self.delegates: list[BackendDelegate] = []
        self.payloads: list[BackendDelegateInlineData] = []
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
        """Calls `cortex_m::operator`; tensors among the arguments become inputs of the program."""
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

    def delegate(
        self, name: str, payload: bytes, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> None:
        """Calls a delegate with the inputs and outputs of the program."""
        self.inputs += [self.tensor(x) for x in inputs]
        self.outputs += [self.tensor(y) for y in outputs]
        where = BackendDelegateDataReference(DataLocation.INLINE, len(self.payloads))
        self.payloads.append(BackendDelegateInlineData(payload))
        self.delegates.append(BackendDelegate(name, where, []))
        number = len(self.delegates) - 1
        self.instructions.append(Instruction(DelegateCall(number, [*self.inputs, *self.outputs])))

    def written(self, *, inline: bool = True) -> bytes:
        """The program; payloads in its flatbuffer, or in segments behind it."""
        given = pytree.tree_structure((tuple(0 for _ in self.inputs), {}))
        results = pytree.tree_structure(tuple(0 for _ in self.outputs))
        plan = ExecutionPlan(
            name="forward",
            container_meta_type=ContainerMetadata(pytree.treespec_dumps(given), pytree.treespec_dumps(results)),
            values=self.values,
            inputs=self.inputs,
            outputs=self.outputs,
            chains=[Chain([], [], self.instructions, None)],
            operators=self.operators,
            delegates=self.delegates,
            non_const_buffer_sizes=[0, self.memory],
        )
        program = Program(0, [plan], [], self.payloads, [], SubsegmentOffsets(0, [0]))
        return bytes(serialize_pte_binary(PTEFile(program), extract_delegate_segments=not inline))


def program_of_calls(calls: Sequence[tuple[str, tuple[Any, ...]]]) -> bytes:
    """A program that makes each call and returns all results; its inputs are the tensors among the arguments.

    Args:
        calls: operator without `cortex_m::`, and arguments in the order of its schema.
    """
    writer = Writer()
    for operator, arguments in calls:
        writer.call(operator, arguments)
    return writer.written()
