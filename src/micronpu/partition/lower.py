"""What ExecuTorch's own lowering is given: delegate calls with finished payloads, and how programs are finished."""

from __future__ import annotations

import torch
from executorch.exir import ExecutorchBackendConfig
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.lowered_backend_module import LoweredBackendModule
from executorch.exir.passes import MemoryPlanningPass
from torch import nn

from micronpu.frontend.states import PREFIX
from micronpu.partition.entry import named_data
from micronpu.partition.memory import plan
from micronpu.partition.outline import DelegateCall
from micronpu.upstream.executorch import initialized, planning_by


def delegate(call: DelegateCall) -> LoweredBackendModule:
    """A delegate call with a finished payload, as ExecuTorch has it."""
    stub = torch.export.export(call, call.examples)
    beside = named_data(call.part).get_named_data_store_output()
    specs = [CompileSpec(key, value) for key, value in call.specs]
    module = LoweredBackendModule(stub, call.backend, call.part.payload, specs, beside)
    module.meta = {"debug_handle_map": call.part.debug_handles}
    return module


def with_delegates(module: nn.Module) -> nn.Module:
    """The module with ExecuTorch's delegate calls in the place of ours, in place."""
    for name, child in list(module.named_children()):
        if isinstance(child, DelegateCall):
            setattr(module, name, delegate(child))
        else:
            with_delegates(child)  # the step of a loop
    return module


def backend_config(*, shared: bool = False) -> ExecutorchBackendConfig:
    """How programs are finished: payloads inside, where the board can read them in place, and tensors placed.

    Args:
        shared: states stand in a memory that all methods have.
    """
    planning = MemoryPlanningPass(memory_planning_algo=planning_by(plan), share_mutable_buffers=shared)
    return ExecutorchBackendConfig(
        extract_delegate_segments=False,
        memory_planning_pass=planning,
        passes=[initialized(PREFIX)],  # else a state begins with whatever the memory holds
    )
