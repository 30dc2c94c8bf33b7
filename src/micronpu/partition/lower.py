"""ExecuTorch's lowering of the host part, with all of its compiler."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from executorch.exir import (
    EdgeProgramManager,
    ExecutorchBackendConfig,
    ExecutorchProgramManager,
    to_edge,
)
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.lowered_backend_module import LoweredBackendModule
from executorch.exir.passes import MemoryPlanningPass
from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature
from torch.fx import GraphModule

from micronpu.container import digest
from micronpu.frontend.states import PREFIX
from micronpu.partition.entry import named_data
from micronpu.partition.memory import plan
from micronpu.partition.outline import DelegateCall
from micronpu.partition.portable import portable_kernels
from micronpu.partition.untraced import untraced
from micronpu.upstream.executorch import add_named_data, edge_config, initialized, planning_by
from micronpu.upstream.idle import WhereNeeded, graphs_left_unwritten, idle_passes_left_out, take_apart
from micronpu.upstream.pte import CORE_KERNELS
from micronpu.upstream.torch import set_graph


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


def lower(
    methods: Mapping[str, tuple[nn.Module, tuple[torch.Tensor, ...]]],
    finish: Callable[[EdgeProgramManager], None] | None = None,
) -> ExecutorchProgramManager:
    """Export and ExecuTorch's lowering of host parts.

    Args:
        methods: by name, with example inputs. Where there are several, buffers of one name are one state of them all.
        finish: changes the program between the two.
    """
    import executorch.kernels.quantized  # noqa: F401  (out variants of quantize and dequantize)

    with contextlib.ExitStack() as stack:
        stack.enter_context(graphs_left_unwritten())
        made = {name: _exported(module, rows) for name, (module, rows) in methods.items()}
        programs = {name: program for name, (program, _) in made.items()}
        stack.enter_context(idle_passes_left_out(all(plain for _, plain in made.values())))
        edge = to_edge(programs, compile_config=edge_config())
        if finish is not None:
            finish(edge)
        add_named_data(edge, digest.KEY, digest.EMPTY)  # once, also where partitions bring it along
        for name in edge.methods:
            program = edge.exported_program(name)
            set_graph(program, program.graph_module, _settled(program.graph_signature))
        return edge.to_executorch(config=backend_config(shared=len(methods) > 1))


def _exported(module: nn.Module, rows: tuple[torch.Tensor, ...]) -> tuple[ExportedProgram, bool]:
    """A host part as torch exports it, and whether nothing of it is left to take apart."""
    program = untraced(module, rows)
    if program is not None and take_apart(program):
        return program, True
    program = torch.export.export(with_delegates(module), rows)
    return program, take_apart(program)


class _Signature(ExportGraphSignature):
    """A signature that nobody changes any more: what is read for each tensor is looked for once."""

    @functools.cached_property
    def inputs_to_parameters(self) -> Mapping[str, str]:
        return super().inputs_to_parameters

    @functools.cached_property
    def inputs_to_lifted_tensor_constants(self) -> Mapping[str, str]:
        return super().inputs_to_lifted_tensor_constants

    @functools.cached_property
    def inputs_to_buffers(self) -> Mapping[str, str]:
        return super().inputs_to_buffers

    @functools.cached_property
    def buffers_to_mutate(self) -> Mapping[str, str]:
        return super().buffers_to_mutate


def _settled(signature: ExportGraphSignature) -> _Signature:
    return _Signature(list(signature.input_specs), list(signature.output_specs))


class _Planning(MemoryPlanningPass):
    """ExecuTorch's memory planning, which asks for the buffers of the program at every tensor of it."""

    def run(self, graph_module: GraphModule, graph_signature: ExportGraphSignature | None = None) -> Any:
        if graph_signature is not None:
            graph_signature = _settled(graph_signature)
        return super().run(graph_module, graph_signature)


def backend_config(*, shared: bool = False) -> ExecutorchBackendConfig:
    """How programs are finished: payloads inside, where the board can read them in place, and tensors placed.

    Args:
        shared: states stand in a memory that all methods have.
    """
    planning = _Planning(memory_planning_algo=planning_by(plan), share_mutable_buffers=shared)
    return ExecutorchBackendConfig(
        extract_delegate_segments=False,
        memory_planning_pass=planning,
        # Else a state begins with whatever the memory holds.
        passes=[WhereNeeded(initialized(PREFIX), lambda n: n.op == "placeholder" and PREFIX in str(n.target))],
    )


# Beside what the runtime does itself, the operators of CMSIS-NN, which come with the core.
_PRIMITIVES = ("executorch_prim::", "aten::sym_", "aten::_local_scalar_dense", CORE_KERNELS)


def missing_kernels(program: ExecutorchProgramManager, method: str) -> list[str]:
    """Operators of a method's host part that ExecuTorch has no portable kernel for, such as ``aten::erfinv.out``."""
    called = {
        f"{o.name}.{o.overload}" if o.overload else o.name
        for plan in program.executorch_program.execution_plan
        for o in plan.operators
        if plan.name == method
    }
    return sorted(n for n in called - portable_kernels() if not n.startswith(_PRIMITIVES))
