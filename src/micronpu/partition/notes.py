"""What a report says about the graphs of partitions, whatever computes them."""

from __future__ import annotations

from collections.abc import Iterable

from micronpu.ir.graph import Graph
from micronpu.ir.types import DType
from micronpu.ops.softmax import Softmax

_STEPS_OF_SOFTMAX = 256


def coarse_notes(graphs: Iterable[Graph]) -> tuple[str, ...]:
    """What the report says about rows that are too long for the fixed grid of their softmax."""
    long = [
        (node.origin.nodes[-1] if node.origin.nodes else node.output.name, node.output.shape[-1])
        for graph in graphs
        for node in graph.nodes
        if isinstance(node.op, Softmax)
        and node.output.type.dtype is DType.INT8
        and node.output.shape[-1] > _STEPS_OF_SOFTMAX
    ]
    return tuple(
        f"The softmax `{name}` has rows of {size:,} values on the grid of int8, with steps of 1/256: an average value "
        'is less than a step. Use the scores in front of it, or activations="int16" for it where the NPU has them.'
        for name, size in long
    )
