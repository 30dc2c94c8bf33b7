"""An NPU's program beside the integer graph that it was made of: what computes both, whatever the family."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from micronpu.host.litert_executor import Buffer, LiteRtProgram, Mode, OperatorTrace
from micronpu.host.tosa_executor import IDENTIFIER, TosaProgram
from micronpu.ir.graph import Graph
from micronpu.ir.interpreter import interpret

Array = np.ndarray[Any, Any]


class Executor(Protocol):
    """Runs the program of a partition on the memory that the runtime hands over."""

    def run(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> None:
        """Compute all outputs."""

    def run_traced(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], sink: Callable[[OperatorTrace], None]
    ) -> None:
        """Like `run`; `sink` is called after each operation."""


class Proof(Protocol):
    """Compares the runs of a payload with its graph; its executor calls it.

    Attributes:
        reference: what to compare with; None until the graph that the program carries is loaded.
        equal: steps of the last run whose result is the graph's, element for element.
        steps: those that the payload names.
    """

    reference: Reference | None
    equal: int
    steps: int


class Reference(Protocol):
    """Computes what the NPU's program should."""

    def compute(self, inputs: Sequence[Array]) -> tuple[Mapping[int, Array], list[Array]]:
        """Results of steps, as far as they are known, and outputs."""
        ...

    def step(self, operator: int) -> int:
        """The step that an operator of the program that the compiler was given belongs to."""
        ...


@dataclass(frozen=True)
class GraphReference:
    """micronpu's own reference interpreter.

    Attributes:
        graph: that was written for the compiler.
        nodes: for each operator of the written program the index of the graph's node.
    """

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
        return self.nodes[operator]  # several operators of TOSA stand for one node


@dataclass(frozen=True)
class WrittenReference:
    """The program that the compiler of the NPU was given, in the arithmetic of its format.

    micronpu's own interpreter says what the steps are.  Its sums round as LiteRT's do, which TOSA's do but for ties, so
    that it does not judge the outputs.
    """

    steps: GraphReference
    program: CarriedReference

    def compute(self, inputs: Sequence[Array]) -> tuple[Mapping[int, Array], list[Array]]:
        return self.steps.compute(inputs)[0], self.program.compute(inputs)[1]

    def step(self, operator: int) -> int:
        return self.steps.step(operator)


@dataclass(frozen=True)
class CarriedReference:
    """The kernels that run the graph which a program carries; of a TOSA program they give the outputs alone."""

    program: LiteRtProgram | TosaProgram

    def compute(self, inputs: Sequence[Array]) -> tuple[Mapping[int, Array], list[Array]]:
        known: dict[int, Array] = {}

        def note(operator: OperatorTrace) -> None:
            if isinstance(self.program, LiteRtProgram) and len(operator.outputs) == 1:
                known[operator.index] = operator.outputs[0]

        arrays = [np.ascontiguousarray(a) for a in inputs]
        outputs = [np.empty(b.size, np.uint8) for b in self.program.outputs]
        given = [
            Buffer(a.ctypes.data, a.nbytes, b.scalar_type) for a, b in zip(arrays, self.program.inputs, strict=True)
        ]
        taken = [
            Buffer(a.ctypes.data, a.nbytes, b.scalar_type) for a, b in zip(outputs, self.program.outputs, strict=True)
        ]
        self.program.run_traced(given, taken, note)
        return known, [a.view(b.numpy_type) for a, b in zip(outputs, self.program.outputs, strict=True)]

    def step(self, operator: int) -> int:
        return operator


def reference_of(graph: Graph, nodes: Sequence[int], flatbuffer: bytes) -> Reference:
    """What a program is to compute that a compiler made of a graph.

    Args:
        nodes: for each operator of the flatbuffer the index of the graph's node.
        flatbuffer: LiteRT, whose kernels the interpreter equals, or TOSA.
    """
    own = GraphReference(graph, nodes)
    if flatbuffer[4:8] != IDENTIFIER:
        return own
    model = TosaProgram(flatbuffer, Mode.REFERENCE, len(graph.inputs), len(graph.outputs))
    return WrittenReference(own, CarriedReference(model))
