"""Input of ExecuTorch's own lowering: delegate calls with finished payloads, and the configuration of the output."""

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
        if isinstance(child, DelegateCall):
            setattr(module, name, delegate(child))
        else:
            with_delegates(child)  # the step of a loop
    return module


def backend_config(*, shared: bool = False) -> ExecutorchBackendConfig:
    """Return the configuration for writing programs: inline payloads, which the board can read in place, and planned
    memory.

    Args:
        shared: states are in a memory that all methods share.
    """
    planning = MemoryPlanningPass(memory_planning_algo=planning_by(plan), share_mutable_buffers=shared)
    return ExecutorchBackendConfig(
        extract_delegate_segments=False,
        memory_planning_pass=planning,
        passes=[initialized(PREFIX)],  # otherwise the initial value of a state would be undefined
    )
