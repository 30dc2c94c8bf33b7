"""Input of ExecuTorch's own lowering: delegate calls with finished payloads, and the configuration of the output."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from executorch.exir import ExecutorchBackendConfig
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.lowered_backend_module import LoweredBackendModule
from executorch.exir.passes import MemoryPlanningPass
from executorch.exir.tensor import TensorSpec
from torch import nn
from torch.export.graph_signature import ExportGraphSignature

from micronpu.frontend.graphs import GraphModule
from micronpu.frontend.tensors import PREFIX
from micronpu.partition.entry import named_data
from micronpu.partition.memory import Lifetime, place
from micronpu.partition.outline import DelegateCall
from micronpu.upstream.executorch import initialized


def delegate(call: DelegateCall) -> LoweredBackendModule:
    """Return a delegate call with a finished payload, in ExecuTorch's form."""
    stub = torch.export.export(call, call.examples)
    beside = named_data(call.part).get_named_data_store_output()
    specs = [CompileSpec(key, value) for key, value in call.specs]
    module = LoweredBackendModule(stub, call.backend, call.part.payload, specs, beside)
    module.meta = {"debug_handle_map": call.part.debug_handles}
    return module


def with_delegates(module: nn.Module) -> nn.Module:
    """Replace delegate calls of this package by ExecuTorch's, in place."""
    for name, child in list(module.named_children()):
        # A child of another class may be the step of a loop.
        setattr(module, name, delegate(child) if isinstance(child, DelegateCall) else with_delegates(child))
    if isinstance(module, GraphModule):
        GraphModule.recompile(module)  # `torch.export` reads the names of its arguments
    return module


def plan(
    alignment: int,
    specs: Iterable[TensorSpec],
    graph_module: GraphModule,
    graph_signature: ExportGraphSignature,
    extra_padding: int = 0,
) -> list[int]:
    """Place tensors, as an algorithm of ExecuTorch's memory planning; return the size of each memory in bytes."""
    # Programs with control flow, tensors in the storage of others or several memories are left to ExecuTorch's greedy
    # one.
    specs = list(specs)
    special = any(s.storage_base is not None or s.mem_id not in (None, 1) for s in specs)
    if special or any(getattr(graph_module, "input_mem_buffer_sizes", None) or ()):
        own: Any = MemoryPlanningPass().memory_planning_algo
        sizes: list[int] = own(alignment, specs, graph_module, graph_signature, extra_padding)
        return sizes
    for spec in specs:
        spec.realign(alignment)
    placement = place([Lifetime(s.allocated_memory, s.lifetime[0], s.lifetime[1]) for s in specs])
    for number, (spec, offset) in enumerate(zip(specs, placement.offsets, strict=True)):
        spec.mem_id, spec.mem_obj_id, spec.mem_offset = 1, number, offset
    return [0, placement.size + extra_padding if specs else 0]


def backend_config() -> ExecutorchBackendConfig:
    """Return how programs are written: payloads inline, which the board can read in place, and planned memory."""
    return ExecutorchBackendConfig(
        extract_delegate_segments=False,
        memory_planning_pass=MemoryPlanningPass(memory_planning_algo=plan),
        passes=[initialized(PREFIX)],  # otherwise the initial value of a state would be undefined
    )
