"""The graph between import and emission: types, nodes, printer, verifier and the reference interpreter."""

from micronpu.ir.graph import Graph, GraphBuilder, Node, Origin, Tensor
from micronpu.ir.interpreter import interpret
from micronpu.ir.types import DType, QParams, TensorType
from micronpu.ir.verify import Stage, verify

__all__ = [
    "DType",
    "Graph",
    "GraphBuilder",
    "Node",
    "Origin",
    "QParams",
    "Stage",
    "Tensor",
    "TensorType",
    "interpret",
    "verify",
]
