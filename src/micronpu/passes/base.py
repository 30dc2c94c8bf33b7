"""What a pass is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from micronpu.ir.graph import Graph, Node, Origin, Tensor
from micronpu.ir.types import QParams, TensorType
from micronpu.ops.base import Op


class Pass(ABC):
    """A rewrite; its doc-string shows the graph before and after.

    Every pass is exact: the graph computes the same integers before and after.
    """

    name: ClassVar[str]

    @abstractmethod
    def run(self, graph: Graph) -> bool:
        """Rewrites in place.  Returns whether anything changed."""

    def make(self, op: Op, inputs: list[Tensor], origin: Origin, qparams: QParams | None = None) -> Node:
        """A node with a result of the inferred type, marked as made by this pass."""
        type = op.infer(*(t.type for t in inputs))
        if type.qparams is None:
            type = type.with_qparams(qparams)
        return Node(op, inputs, [Tensor(op.name, type)], origin.through(self.name))


def with_data(tensor: Tensor, data, type: TensorType) -> Tensor:  # type: ignore[no-untyped-def]
    """A constant like ``tensor`` with other data."""
    import numpy as np

    return Tensor(tensor.name, type, np.ascontiguousarray(data))
