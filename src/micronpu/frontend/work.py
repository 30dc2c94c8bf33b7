"""Multiply-accumulate operations of a float model."""

from __future__ import annotations

import math
from operator import attrgetter
from typing import Any

from torch.fx import GraphModule, Node

from micronpu.frontend.program import overload_name, value_of
from micronpu.ops.recurrent import CELLS, RECURRENT

_PRODUCTS = {"linear": 0, "matmul": 0, "mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}
"""Operand index of the first matrix in a product of matrices."""


def multiply_accumulates(module: GraphModule) -> int:
    """Return the number in convolutions, recurrent layers and products of matrices; others are negligible."""
    return sum(work_of(module).values())


def work_of(module: GraphModule) -> dict[str, int]:
    """Return the number by the name of the operator."""
    return {node.name: _of(module, node) for node in module.graph.nodes if node.op == "call_function"}


def _of(module: GraphModule, node: Node) -> int:
    name = overload_name(node).partition(".")[0]
    if name in _PRODUCTS:
        return math.prod(_shape(module, node)) * _shape(module, node.args[_PRODUCTS[name]])[-1]
    if name.startswith(("conv1", "conv2", "conv3", "conv_transpose", "convolution")):
        transposed = name.startswith("conv_transpose") or (name == "convolution" and bool(node.args[6]))
        places, window = _shape(module, node.args[0] if transposed else node), _shape(module, node.args[1])[1:]
        return math.prod((*places, *window))
    if overload_name(node) in (*RECURRENT, *CELLS):
        shapes = [_shape(module, n) for n in node.all_input_nodes if n.op == "get_attr"]
        return math.prod(_shape(module, node.args[0])[:-1]) * sum(math.prod(s) for s in shapes if len(s) == 2)
    if name == "scaled_dot_product_attention":
        return 2 * math.prod(_shape(module, node.args[0])) * _shape(module, node.args[1])[-2]
    return 0


def _shape(module: GraphModule, node: Any) -> tuple[int, ...]:
    return tuple((attrgetter(node.target)(module) if node.op == "get_attr" else value_of(node)).shape)
