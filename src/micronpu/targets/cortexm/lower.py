"""The host part of a program, with everything that a Cortex-M core computes in int8 as calls of CMSIS-NN's kernels."""

from __future__ import annotations

from typing import Any

from executorch import exir
from executorch.exir import EdgeProgramManager
from executorch.exir.dialects._ops import ops as exir_ops
from torch.export import ExportedProgram
from torch.fx import GraphModule

from micronpu.chips.core import Core
from micronpu.frontend.importer import import_nodes
from micronpu.frontend.program import ProgramView
from micronpu.ir.graph import Graph
from micronpu.partition.outline import compute_contiguously, outline
from micronpu.targets.cortexm.emit import emit
from micronpu.targets.cortexm.legalize import legalize
from micronpu.targets.cortexm.partition import core_partition


def on_core(module: GraphModule, core: Core) -> tuple[GraphModule, tuple[Graph, ...]]:
    """Puts int8 kernels in the place of the quantized operators that a core computes.

    Args:
        module: a quantized module, or what `micronpu.partition.outline` left of it.

    Returns:
        The module with the kernels, and the graphs that they compute, which define the numbers.
    """
    view = ProgramView(module)
    groups = core_partition(view, core).groups
    graphs, calls = [], []
    for group in groups:
        graph = legalize(import_nodes(view, group.nodes, list(group.inputs), list(group.outputs)))
        graphs.append(graph)
        calls.append(emit(graph, core))
    outlined = outline(module, groups, calls, "core", view.images)
    compute_contiguously(outlined)
    return outlined, tuple(graphs)


def plan_scratch(edge: EdgeProgramManager) -> None:
    """Makes memory that ExecuTorch plans, and fills with nothing, of the scratch tensors of kernels."""
    for method in sorted(edge.methods):
        _plan_scratch(edge.exported_program(method))


def _plan_scratch(program: ExportedProgram) -> None:
    empty: Any = exir_ops.edge.dim_order_ops._empty_dim_order.default
    for node in program.graph.find_nodes(op="call_function", target=empty, sort=False):
        value = node.meta["val"]
        with program.graph.inserting_before(node):
            made = program.graph.call_function(exir.memory.alloc, (((tuple(value.shape), value.dtype)),))
        made.meta = dict(node.meta)
        node.replace_all_uses_with(made)
        program.graph.erase_node(node)
    program.graph_module.recompile()
