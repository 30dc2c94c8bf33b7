"""Compare an NPU's program with the integer graph it was compiled from, for any backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from micronpu.base.arrays import Array
from micronpu.host.litert_executor import HostProgram, LiteRtProgram, Mode, OperatorTrace
from micronpu.host.tosa_executor import IDENTIFIER, TosaProgram
from micronpu.ir.graph import Graph
from micronpu.ir.interpreter import interpret


class Proof(Protocol):
    """Compares runs of a payload with its graph; the payload's executor calls it.

    Attributes:
        reference: what to compare with; None until the graph that the program carries is loaded.
        equal: steps of the last run whose result equals the graph's, element by element.
        steps: those that the payload names.
    """

    reference: Reference | None
    equal: int
    steps: int


class Reference(Protocol):
    """Computes the expected results of the NPU's program."""

    def compute(self, inputs: Sequence[Array]) -> tuple[Mapping[int, Array], list[Array]]:
        """Return the known results of steps, and the outputs."""
        ...

    def step(self, operator: int) -> int:
        """Return the step of an operator of the compiler's input program."""
        ...


@dataclass(frozen=True)
class GraphReference:
    """micronpu's own reference interpreter of the compiler's input; operators of the written program are nodes of the
    graph."""

    graph: Graph
    nodes: Sequence[int]

    def compute(self, inputs: Sequence[Array]) -> tuple[Mapping[int, Array], list[Array]]:
        given = [
            np.asarray(a).reshape(t.shape).view(t.type.dtype.numpy)
            for a, t in zip(inputs, self.graph.inputs, strict=True)
        ]
        made: dict[int, Array] = {}
        outputs = interpret(self.graph, given, observe=lambda _, value: made.update({len(made): value}))
        return made, outputs

    def step(self, operator: int) -> int:
        return self.nodes[operator]  # several operators of TOSA may implement one node


@dataclass(frozen=True)
class WrittenReference:
    """The compiler's input program, in the arithmetic of its format.

    micronpu's own interpreter computes the steps. Its sums round like LiteRT's, which differ from TOSA's in ties, so it
    does not compute the outputs.
    """

    steps: GraphReference
    program: CarriedReference

    def compute(self, inputs: Sequence[Array]) -> tuple[Mapping[int, Array], list[Array]]:
        return self.steps.compute(inputs)[0], self.program.compute(inputs)[1]

    def step(self, operator: int) -> int:
        return self.steps.step(operator)


@dataclass(frozen=True)
class CarriedReference:
    """The kernels that run the graph in a program; for a TOSA program they compute the outputs only."""

    program: HostProgram

    def compute(self, inputs: Sequence[Array]) -> tuple[Mapping[int, Array], list[Array]]:
        known: dict[int, Array] = {}

        def note(operator: OperatorTrace) -> None:
            if isinstance(self.program, LiteRtProgram) and len(operator.outputs) == 1:
                known[operator.index] = operator.outputs[0]

        outputs = self.program.outputs_of(inputs, note)
        return known, outputs

    def step(self, operator: int) -> int:
        return operator


def reference_of(graph: Graph, nodes: Sequence[int], flatbuffer: bytes) -> Reference:
    """Return the reference for a program compiled from a graph, given its LiteRT or TOSA form, and the node of each
    operator."""
    own = GraphReference(graph, nodes)
    if flatbuffer[4:8] != IDENTIFIER:
        return own
    model = TosaProgram(flatbuffer, Mode.REFERENCE)
    return WrittenReference(own, CarriedReference(model))
