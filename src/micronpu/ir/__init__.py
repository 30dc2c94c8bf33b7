"""The graph between import and emission: types, nodes, printer, verifier and the reference interpreter."""

from micronpu.ir.graph import Graph, GraphBuilder, Node, Origin, Stage, Tensor, verify
from micronpu.ir.interpreter import interpret
from micronpu.ir.types import DType, QParams, TensorType

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
