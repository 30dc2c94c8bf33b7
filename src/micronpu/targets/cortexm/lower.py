"""Memory for the kernels of a Cortex-M core, in the host part of a program."""

from __future__ import annotations

from typing import Any

import torch
from executorch import exir
from executorch.exir import EdgeProgramManager
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch.fx import GraphModule

from micronpu.frontend.program import arguments
from micronpu.upstream.executorch import define_core_operators, empty_tensor, steps_of

_NAMES = ("quantize_per_tensor", "dequantize_per_tensor")
_TYPES = (torch.int8, torch.int16)


def calls_a_delegate(module: GraphModule) -> bool:
    inside = any(isinstance(m, LoweredBackendModule) for m in module.modules())
    return inside or any(n.target is executorch_call_delegate for n in module.graph.nodes)


def quantize_by_kernels_of_the_core(module: GraphModule) -> None:
    """Firmware for a core alone links one library of kernels: its own quantize and dequantize give the same bits.

    quantized_decomposed::quantize_per_tensor(x)        cortex_m::quantize_per_tensor(x)
    """
    define_core_operators()
    given, own = torch.ops.quantized_decomposed, torch.ops.cortex_m
    kernels = {getattr(given, n).default: getattr(own, n).default for n in _NAMES}
    for node in module.graph.nodes:
        if node.target in kernels and arguments(node)["dtype"] in _TYPES and not node.kwargs.get("out_dtype"):
            node.target = kernels[node.target]
            node.kwargs = {key: value for key, value in node.kwargs.items() if key != "out_dtype"}
    module.recompile()


def plan_scratch(edge: EdgeProgramManager) -> None:
    """Makes memory that ExecuTorch plans, and fills with nothing, of the scratch tensors of kernels."""
    for method in sorted(edge.methods):
        _plan_scratch(edge.exported_program(method).graph_module)


def _plan_scratch(module: GraphModule) -> None:
    empty: Any = empty_tensor()
    for node in module.graph.find_nodes(op="call_function", target=empty, sort=False):
        value = node.meta["val"]
        with module.graph.inserting_before(node):
            made = module.graph.call_function(exir.memory.alloc, (((tuple(value.shape), value.dtype)),))
        made.meta = dict(node.meta)
        node.replace_all_uses_with(made)
        module.graph.erase_node(node)
    module.recompile()
    for step in steps_of(module):
        _plan_scratch(step)
