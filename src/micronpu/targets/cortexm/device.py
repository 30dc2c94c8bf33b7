"""A Cortex-M core as a compilation target, alone or beside an NPU: the CMSIS-NN calls that compute its operators."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from micronpu.base.errors import InternalError
from micronpu.chips.core import Core, find_core
from micronpu.frontend.graphs import GraphModule, calls, findings
from micronpu.frontend.program import arguments, is_quantize, overload_name, qualified_name, value_of
from micronpu.ir.graph import Graph, Node
from micronpu.partition.device import CompiledPartition, CorePart, Device
from micronpu.partition.kernels import CoreKernel
from micronpu.partition.outline import DelegateCall
from micronpu.partition.partition import Partition, Policy
from micronpu.passes.rewrite import Choice
from micronpu.report.operations import Cost, Latency
from micronpu.report.verdict import Reason
from micronpu.targets.cortexm.costs import core_costs, core_latency
from micronpu.targets.cortexm.emit import emit
from micronpu.targets.cortexm.options import CortexMOptions
from micronpu.targets.cortexm.rewrites import REWRITES
from micronpu.targets.cortexm.rules import CAPABILITIES, check_node, legalize
from micronpu.upstream.executorch import empty_tensor

_KERNELS = {
    f"quantized_decomposed::{name}": CoreKernel(name, keeps_order=True)
    for name in ("quantize_per_tensor", "dequantize_per_tensor")
}
_TYPES = (torch.int8, torch.int16)


def _calls_a_delegate(module: GraphModule) -> bool:
    """True if an NPU runs a part of the program, compiled by this compiler or another partitioner of a recipe."""
    foreign = any(getattr(n.target, "__name__", "") == "executorch_call_delegate" for n in calls(module))
    return foreign or any(isinstance(m, DelegateCall) for m in module.modules())


def quantize_by_kernels_of_the_core(module: GraphModule) -> None:
    """Use CMSIS-NN's quantize and dequantize, with equal results: firmware for a core alone then links one kernel
    library.

    quantized_decomposed::quantize_per_tensor(x)        cortex_m::quantize_per_tensor(x)
    """
    for node, kernel in findings(module, lambda node: _KERNELS.get(qualified_name(node))).items():
        given = arguments(node)
        if given["dtype"] in _TYPES and not given.pop("out_dtype", None) and overload_name(node).endswith(".default"):
            dtype = given["dtype"] if is_quantize(node) else torch.float32
            node.meta["val"] = torch.empty_like(value_of(node), dtype=dtype, device="meta")
            node.target, node.args, node.kwargs = kernel, tuple(given.values()), {}
    module.recompile()


def plan_scratch(module: GraphModule) -> None:
    """Turn the scratch tensors of kernels, outside of delegates, into uninitialized memory planned by ExecuTorch."""
    from executorch import exir  # ExecuTorch's compiler

    empty: Any = empty_tensor()
    for node in module.graph.find_nodes(op="call_function", target=empty, sort=False):
        value = node.meta["val"]
        with module.graph.inserting_before(node):
            made = module.graph.call_function(exir.memory.alloc, (((tuple(value.shape), value.dtype)),))
        made.meta = dict(node.meta)
        node.replace_all_uses_with(made)
        module.graph.erase_node(node)
    module.recompile()
    for step in module.children():  # of loops and branches
        if isinstance(step, GraphModule):
            plan_scratch(step)


class CortexMPart(CorePart):
    """The operators that a Cortex-M core computes in int8, without the disabled rewrites."""

    def __init__(self, core: Core, disabled: Sequence[str] = ()) -> None:
        self.core = core
        self._disabled = tuple(disabled)

    def policy(self) -> Policy:
        def decide(node: Node) -> Choice | list[Reason]:
            return check_node(node, self._disabled) or Choice((node,))

        return Policy(
            name=self.core.title,
            decide=decide,
            finish=lambda graph, pipeline: legalize(graph, self._disabled, pipeline),
            allow_no_op_partitions=True,
            allow_empty=True,
            finishing=frozenset(rewrite.name for rewrite in REWRITES),
        )

    def module(self, graph: Graph) -> GraphModule:
        return emit(graph, self.core)

    def adapt(self, module: GraphModule) -> None:
        if not _calls_a_delegate(module):
            quantize_by_kernels_of_the_core(module)

    def costs(self, graph: Graph) -> Mapping[int, Cost]:
        return core_costs(graph, self.core)

    def latency(self, graphs: Iterable[Graph]) -> tuple[Latency, ...]:
        return core_latency(graphs, self.core)


class CortexMDevice(Device):
    """A core without an NPU: nothing is delegated; operators with a CMSIS-NN kernel run in int8."""

    def __init__(self, options: CortexMOptions, target: str = "", core: Core | None = None) -> None:
        self.options = options
        self.capabilities, self.disabled_rewrites = CAPABILITIES, options.disabled_rewrites
        self.target = target or options.silicon
        own = find_core(options.silicon, options.instructions)
        if core is not None:  # the chip's data take precedence, unless the user has set the option
            own = replace(core, instructions=own.instructions) if options.instructions else core
        self.beside = CortexMPart(own, options.disabled_passes)

    def policy(self) -> Policy | None:
        return None

    def plan(self, partition: Partition) -> None:
        self.compile(partition)

    def compile(self, partition: Partition) -> CompiledPartition:
        raise InternalError(f"{self.target} delegates nothing, but a partition was to be compiled for it.")

    def compile_program(self, graph: Graph) -> CompiledPartition:
        raise InternalError(f"{self.target} delegates nothing, but a program was to be compiled for it.")

    def specs(self) -> list[tuple[str, bytes]]:
        return []

    def notes(self, parts: Sequence[CompiledPartition]) -> tuple[str, ...]:
        return ()
