"""Policy of an NPU, or of the core beside it: which operators it accepts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch.fx import Node as FxNode

from micronpu.frontend.program import origin_of
from micronpu.ir.graph import Graph, Node
from micronpu.ir.op import Op
from micronpu.passes.pipeline import DEFAULT, Pipeline
from micronpu.passes.rewrite import Choice
from micronpu.report.verdict import Reason

Decide = Callable[[Node], "Choice | list[Reason]"]


IMPORTED = "is_imported"
IMPORTED_SENTENCE = "The operator, in this form and quantized, is one that micronpu can express."
BOUNDARY = "border_fits"
COMPUTES = "computes"
COMPUTES_SENTENCE = "A partition computes something; moving values to the NPU and back would only cost time."


def reason_at(node: FxNode, rule: str, sentence: str, detail: str, hint: str = "") -> Reason:
    """Return a reason with the place of a node of the program."""
    return Reason(rule, sentence, detail, node.name, origin_of(node).source, hint)


def nothing(node: FxNode) -> Reason | None:
    """Exclude no node."""
    return None


@dataclass(frozen=True, kw_only=True, eq=False)
class Policy:
    """Decides which operators an NPU or a core accepts.

    Attributes:
        name: of the target in reports.
        decide: returns the choice for an imported operator, or why there is none.
        exclude: returns a reason why the user does not want a node there, or None.
        finish: brings the chosen graph of a partition to its final form with the passes of a pipeline; in place.
        pipeline: the user's, or the default.
        allow_no_op_partitions: also make partitions that only move values, reshapes included.
        allow_moves: also make partitions that only move values, if an operator moves them in memory.
        allow_empty: also make partitions with nothing to run at all.
        free: operators that leave nothing to run, such as a reshape that moves no byte.
        finishing: names of the rewrites that `finish` applies to operators that need them.
        notes: notes of the report besides the verdicts.
        most_tensors: maximum number of inputs, and of outputs, of a partition, which is otherwise divided; None for any
            number.
    """

    name: str
    decide: Decide
    exclude: Callable[[FxNode], Reason | None] = nothing
    finish: Callable[[Graph, Pipeline], Graph] = lambda graph, pipeline: pipeline.run(graph)
    allow_no_op_partitions: bool = False
    allow_moves: bool = False
    allow_empty: bool = False
    free: tuple[type[Op], ...] = ()
    finishing: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    most_tensors: int | None = None
    pipeline: Pipeline = DEFAULT

    def finished(self, graph: Graph) -> Graph:
        """Bring a graph whose operators are chosen to its final form, in place."""
        return self.finish(graph, self.pipeline)
