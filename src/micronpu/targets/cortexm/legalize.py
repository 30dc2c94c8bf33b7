"""The final form of a graph for a Cortex-M core: every operator is one that CMSIS-NN has a kernel for."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from micronpu.ir.graph import Graph, Node
from micronpu.ir.window import Activation
from micronpu.ops.convolution import Conv2d, DepthwiseConv2d
from micronpu.ops.elementwise import Mul
from micronpu.ops.pooling import AvgPool2d, MaxPool2d
from micronpu.ops.transposed import TransposeConv2d
from micronpu.passes import run_passes
from micronpu.passes.choose import Choice, choose, no_cost, rewritten
from micronpu.passes.fusion import FoldPads
from micronpu.passes.pipeline import DEFAULT, Pipeline, switchable_passes
from micronpu.targets.cortexm.emit import LOWERINGS
from micronpu.targets.cortexm.rewrites import REWRITES, is_even
from micronpu.targets.cortexm.table import is_table


def legalize(graph: Graph, disabled: Collection[str] = (), pipeline: Pipeline = DEFAULT) -> Graph:
    """Simplifies an imported graph and rewrites what has no kernel, in place; returns it.

    Args:
        disabled: names of passes and rewrites to leave out.
        pipeline: the passes that simplify.
    """
    run_passes(graph, disabled=[name for name in disabled if name in switchable_passes()], pipeline=pipeline)
    FoldPads().run(graph)  # what LiteRT has no word for, CMSIS-NN takes along where both sides are padded alike
    graph.remove_dead()
    rewritten(graph, lambda node: choose_kernels(node, disabled))
    graph.remove_dead()
    graph.rename()
    return graph


def choose_kernels(node: Node, disabled: Collection[str] = ()) -> Choice | None:
    """What computes a node with the kernels of the core; None where nothing does."""
    return choose(node, has_kernel, no_cost, REWRITES, disabled=disabled)


def has_kernel(node: Node) -> bool:
    """Whether the core computes the operator as it is: by a table, or by a kernel that has its attributes."""
    op: Any = node.op
    if is_table(node):
        return True
    if type(op) not in LOWERINGS:
        return False
    if isinstance(op, Mul):
        return op.activation is Activation.NONE
    if isinstance(op, AvgPool2d) and op.count_padding:
        return False
    if isinstance(op, (Conv2d, DepthwiseConv2d, MaxPool2d, AvgPool2d)):
        return is_even(op.padding)
    return not isinstance(op, TransposeConv2d) or is_even(op.crop)
