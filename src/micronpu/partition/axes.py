"""Orders of axes in memory that a payload can express: contiguous and channels-last."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch.fx import GraphModule, Node

from micronpu.frontend.program import CHANNELS_LAST, axes_in_memory, calls_into, is_dequantize, is_quantize, value_of
from micronpu.ops.calls import CLONE
from micronpu.partition.partition import Partitioning
from micronpu.partition.policy import reason_at
from micronpu.report.verdict import Reason

RULE = "border_has_an_order"
SENTENCE = "Tensors between NPU and host are contiguous or channels-last in memory."
_HINT = "micronpu.compile, which reorders it, or contiguous example inputs"


def is_in_order(value: Any) -> bool:
    """Return True if ExecuTorch derives an order from the strides that a payload can express."""
    return not isinstance(value, torch.Tensor) or axes_in_memory(value) in (tuple(range(value.dim())), CHANNELS_LAST)


def order_inputs(module: GraphModule, inputs: Collection[Any]) -> None:
    """Copy inputs that are contiguous, but with the strides of another order on axes of size 1, in place.

        x [1, 1, 6, 6] with strides (36, 1, 6, 1) -> quantize        x -> clone{contiguous} -> quantize

    ExecuTorch derives the order of the axes from the strides, (0, 2, 1, 3) here, which no payload can express.
    """
    for node in module.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        if node.target not in inputs or not isinstance(value, torch.Tensor) or not value.is_contiguous():
            continue
        if is_in_order(value):
            continue
        with module.graph.inserting_after(node):
            clone = _contiguous(module, node)
        node.replace_all_uses_with(clone, delete_user_cb=lambda user, own=clone: user is not own)


def order_results(module: GraphModule, partitioning: Partitioning) -> None:
    """Copy results of partitions in an order that no payload can express; the NPU makes the copy, at no cost.

    conv2d -> quantize -> dequantize -> y    conv2d -> quantize -> dequantize -> clone{contiguous} -> quantize -> ...

    Values inside partitions are copied, too: their ends are known only after compilation.
    """
    for partition in partitioning.partitions:
        for quantize in partition.nodes:
            if not is_quantize(quantize) or is_in_order(value_of(quantize)):
                continue
            readers = [n for n in quantize.users if is_dequantize(n)]
            if not readers:
                continue
            with module.graph.inserting_after(quantize):
                floats = module.graph.node_copy(readers[0])
            with module.graph.inserting_after(floats):
                clone = _contiguous(module, floats)
            with module.graph.inserting_after(clone):
                again = module.graph.node_copy(quantize)
            again.args = (clone, *quantize.args[1:])
            again.meta["val"] = value_of(quantize).clone(memory_format=torch.contiguous_format)
            for node in readers:
                node.replace_input_with(quantize, again)


def out_of_order(partitioning: Partitioning) -> dict[str, Reason]:
    """Return reasons for operators at the boundary of partitions to stay on the core, by name of their node."""
    found: dict[str, Reason] = {}
    for partition in partitioning.partitions:
        for value in (n for n in (*partition.inputs, *partition.outputs) if not is_in_order(value_of(n))):
            for unit in (d.unit for d in partition.decisions):
                if value in unit.reads or value in unit.quantizes:
                    detail = f"`{value.name}` has the order of axes {axes_in_memory(value_of(value))}"
                    node = unit.quantizes[0]
                    found[node.name] = reason_at(node, RULE, SENTENCE, detail, _HINT)
    return found


def _contiguous(module: GraphModule, node: Node) -> Node:
    clone = calls_into(module.graph)(CLONE, node, memory_format=torch.contiguous_format)
    clone.meta = dict(node.meta) | {"val": value_of(node).clone(memory_format=torch.contiguous_format)}
    return clone
