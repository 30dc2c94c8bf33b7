"""Memory for a Cortex-M core's kernels outside of delegates; a separate module, as it imports ExecuTorch's compiler."""

from __future__ import annotations

from typing import Any

from executorch import exir
from executorch.exir import EdgeProgramManager
from torch.fx import GraphModule

from micronpu.upstream.executorch import empty_tensor


def plan_scratch(edge: EdgeProgramManager) -> None:
    """Turn the scratch tensors of kernels into uninitialized memory planned by ExecuTorch."""
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
    for step in module.children():  # of loops and branches
        if isinstance(step, GraphModule):
            _plan_scratch(step)
