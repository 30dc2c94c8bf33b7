"""Operators that a Cortex-M core computes in int8: one function per limit, whose docstring is shown to users.

An operator is supported if its rewrites and `micronpu.targets.cortexm.emit` can express it with kernels of CMSIS-NN, or
with kernels of ExecuTorch that only move or compare integers. Others run in float. `legalize` applies the rewrites.
"""

from __future__ import annotations

from collections.abc import Collection

from micronpu.ir.graph import Graph, Node
from micronpu.ir.lowering import Capabilities
from micronpu.ir.types import DType, TensorType
from micronpu.ir.window import Activation
from micronpu.ops.convolution import Conv2d, DepthwiseConv2d, TransposeConv2d
from micronpu.ops.elementwise import Mul
from micronpu.ops.pooling import AvgPool2d, MaxPool2d
from micronpu.ops.softmax import Softmax
from micronpu.passes import run_passes
from micronpu.passes.fusion import FoldPads
from micronpu.passes.pipeline import DEFAULT, Pipeline, switchable_passes
from micronpu.passes.rewrite import Choice, choose, no_cost, rewritten
from micronpu.report.verdict import Finding, Reason, found
from micronpu.targets.cortexm.emit import LOWERINGS, is_table
from micronpu.targets.cortexm.rewrites import REWRITES, is_even
from micronpu.targets.options import Rules

CAPABILITIES = Capabilities(tables=True, index_types=(DType.INT32,), positions=True, zero_points=True)
RULES = Rules()

SOFTMAX_ELEMENTS = 512
"""Number of equal elements in a row at which the sum of exponentials reaches 2**28 in Q12."""


@RULES.limit()
def core_activations_are_int8(node: Node, disabled: Collection[str]) -> Finding | None:
    """Activations on the core are int8 with one scale and zero point per tensor."""

    def is_int8(type: TensorType) -> bool:
        return type.dtype is DType.INT8 and type.qparams is not None and type.qparams.is_per_tensor

    operands = zip(node.op.operand_names, node.inputs, strict=False)
    first = next(t for name, t in operands if name != "indices")  # which are int32
    wrong = next((t for t in (first.type, node.output.type) if not is_int8(t)), None)
    return None if wrong is None else found(f"a tensor of type {wrong}", "quantize activations to int8")


@RULES.limit()
def core_has_kernel(node: Node, disabled: Collection[str]) -> Finding | None:
    """The core has an int8 kernel for the operator."""
    if choose_kernels(node, disabled) is not None:
        return None
    return found(f"`{node.op.name}`", "express it by operators that the core has")


@RULES.limit(Softmax)
def core_softmax_sum_fits(node: Node, disabled: Collection[str]) -> Finding | None:
    """Softmax on the core is over fewer than 512 elements; the sum of more overflows CMSIS-NN's fixed point."""
    channels = node.output.type.channels
    return found(f"{channels} elements", "leave softmax to the application") if channels >= SOFTMAX_ELEMENTS else None


def check_node(node: Node, disabled: Collection[str] = ()) -> list[Reason]:
    """Return every limit that an operator violates without the disabled rewrites; empty if the core computes it in
    int8."""
    return RULES.violated(node, node, disabled)


def legalize(graph: Graph, disabled: Collection[str] = (), pipeline: Pipeline = DEFAULT) -> Graph:
    """Simplify an imported graph by the pipeline and rewrite operators without kernel, in place; return it."""
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
    op: object = node.op
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
