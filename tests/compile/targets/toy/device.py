"""The toy as the compiler knows it: a chain of unary functions of int8 is one table of 256 results."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tests.compile.targets.toy import MAGIC
from tests.compile.targets.toy.backend import ToyOptions

from micronpu.ir.graph import Graph, Node
from micronpu.ir.lowering import Capabilities
from micronpu.ir.op import Value
from micronpu.ir.types import DType
from micronpu.ops.elementwise import Elementwise
from micronpu.partition.device import CompiledPartition, Device, graph_for_npu
from micronpu.partition.partition import Partition, Policy
from micronpu.passes.rewrite import Choice
from micronpu.report.verdict import Reason

SENTENCE = "The toy computes functions of one int8 number."


class ToyDevice(Device):
    backend = "ToyBackend"

    def __init__(self, options: ToyOptions, target: str = "") -> None:
        self.options, self.capabilities = options, Capabilities()
        self.target = target or options.silicon

    def policy(self) -> Policy:
        return Policy(name=self.target, decide=decide, most_tensors=1)

    def plan(self, partition: Partition) -> Graph:
        return partition.graph

    def compile(self, partition: Partition) -> CompiledPartition:
        return compiled(partition.graph, partition.chosen.first_operator())

    def compile_program(self, graph: Graph) -> CompiledPartition:
        return compiled(graph_for_npu(graph, self.policy()), graph.first_operator())

    def specs(self) -> list[tuple[str, bytes]]:
        return self.options.to_pairs(for_program=True)

    def notes(self, parts: Sequence[CompiledPartition]) -> tuple[str, ...]:
        return (f"{len(parts)} toys were thrown.",)


def decide(node: Node) -> Choice | list[Reason]:
    types = {t.type.dtype for t in (*node.inputs, node.output)}
    if isinstance(node.op, Elementwise) and len(node.inputs) == 1 and types == {DType.INT8}:
        return Choice((node,))
    return [Reason("is_a_function", SENTENCE, f"`{node.op.name}` of {len(node.inputs)} operands", node.output.name)]


def compiled(graph: Graph, name: str) -> CompiledPartition:
    table = np.arange(-128, 128, dtype=np.int8)
    for node in graph.nodes:
        x, y = (t.type.with_shape((256,)) for t in (node.inputs[0], node.output))
        table = node.op.reference(y, Value(table, x)).astype(np.int8)
    handles = {0: tuple(h for node in graph.nodes for h in node.origin.debug_handles)}
    return CompiledPartition(data=MAGIC + table.tobytes(), graph=graph, debug_handles=handles, name=name)
