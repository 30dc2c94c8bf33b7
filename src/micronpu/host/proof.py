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


@dataclass(frozen=True)
class Reference:
    """The expected results of an NPU's program, of micronpu's own interpreter or of a program's kernels.

    Of both, the interpreter computes the steps and the kernels the outputs: the interpreter's sums round like LiteRT's,
    which differ from TOSA's in ties.

    Attributes:
        program: kernels that run the compiler's input, or the graph that a program carries; TOSA's know no steps.
        graph: the compiler's input as a graph.
        nodes: its node for each operator of the written program; several operators of TOSA may implement one.
    """

    program: HostProgram | None = None
    graph: Graph | None = None
    nodes: Sequence[int] = ()

    def compute(self, inputs: Sequence[Array]) -> tuple[Mapping[int, Array], list[Array]]:
        """Return the known results of steps, and the outputs."""
        known: dict[int, Array] = {}
        outputs: list[Array] = []
        if self.graph is not None:
            given = [
                np.asarray(a).reshape(t.shape).view(t.type.dtype.numpy)
                for a, t in zip(inputs, self.graph.inputs, strict=True)
            ]
            outputs = interpret(self.graph, given, observe=lambda _, value: known.update({len(known): value}))
        if self.program is not None:
            own = self.graph is None and isinstance(self.program, LiteRtProgram)

            def note(operator: OperatorTrace) -> None:
                if own and len(operator.outputs) == 1:
                    known[operator.index] = operator.outputs[0]

            outputs = self.program.outputs_of(inputs, note)
        return known, outputs

    def step(self, operator: int) -> int:
        """Return the step of an operator of the compiler's input program."""
        return self.nodes[operator] if self.graph is not None else operator


def reference_of(graph: Graph, nodes: Sequence[int], flatbuffer: bytes) -> Reference:
    """Return the reference for a program compiled from a graph, given its LiteRT or TOSA form, and the node of each
    operator."""
    written = TosaProgram(flatbuffer, Mode.REFERENCE) if flatbuffer[4:8] == IDENTIFIER else None
    return Reference(written, graph, nodes)
