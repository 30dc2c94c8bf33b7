"""Legalize a graph for a Cortex-M core: every operator has a CMSIS-NN kernel."""

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
from micronpu.targets.cortexm.emit import LOWERINGS, is_table
from micronpu.targets.cortexm.rewrites import REWRITES, is_even


def legalize(graph: Graph, disabled: Collection[str] = (), pipeline: Pipeline = DEFAULT) -> Graph:
    """Simplify an imported graph and rewrite operators without kernel, in place; return it.

    Args:
        disabled: names of passes and rewrites to skip.
        pipeline: the passes that simplify.
    """
    run_passes(graph, disabled=[name for name in disabled if name in switchable_passes()], pipeline=pipeline)
    FoldPads().run(graph)  # CMSIS-NN supports symmetric padding that LiteRT cannot express
    graph.remove_dead()
    rewritten(graph, lambda node: choose_kernels(node, disabled))
    graph.remove_dead()
    graph.rename()
    return graph


def choose_kernels(node: Node, disabled: Collection[str] = ()) -> Choice | None:
    """Return the implementation of a node with kernels of the core; None if there is none."""
    return choose(node, has_kernel, no_cost, REWRITES, disabled=disabled)


def has_kernel(node: Node) -> bool:
    """True if the core computes the operator unchanged: by a table, or by a kernel with its attributes."""
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
