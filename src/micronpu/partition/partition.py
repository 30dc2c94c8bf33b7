"""Decisions on units, and partitions, as values."""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch.fx import Node as FxNode

from micronpu.frontend.importer import GraphPiece, assemble
from micronpu.frontend.units import Unit
from micronpu.ir.graph import Graph
from micronpu.ir.graph import Node as GraphNode
from micronpu.partition.policy import Policy
from micronpu.passes.choose import Choice
from micronpu.report.delegation import DelegationReport
from micronpu.report.shown import Shown
from micronpu.report.verdict import Reason

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(eq=False)
class Decision:
    """The decision on a unit for an NPU or a core.

    Attributes:
        reasons: reasons why it is refused; empty if it is accepted.
        macs: multiply-accumulate operations.
        operations: number of operations before the passes, except those that leave nothing to run or return an operand
            unchanged.
        computes: True if one of them does more than move values.
        moves: True if one of them moves values in memory.
        choices: choice for each node of the imported unit.
    """

    unit: Unit
    reasons: list[Reason] = field(default_factory=list)
    macs: int = 0
    operations: int = 0
    computes: bool = True
    moves: bool = False
    choices: dict[GraphNode, Choice] = field(default_factory=dict)

    @property
    def rewrites(self) -> tuple[str, ...]:
        """Names of the rewrites without which it would be refused."""
        return tuple(dict.fromkeys(name for choice in self.choices.values() for name in choice.rewrites))

    @property
    def moves_only(self) -> bool:
        """True if it computes nothing."""
        return self.unit.moves_only or not self.computes


@dataclass(eq=False)
class Partition:
    """Content of one call: nodes, inputs and outputs, and the chosen graph.

    Attributes:
        nodes: every node that belongs to it, in execution order.
        inputs: integer nodes read from outside, in the order of ExecuTorch's arguments: as they are first read.
        outputs: quantize nodes whose integers are read outside.
        decisions: decisions on its units, in the order of the program.
        policy: of the NPU or the core that computes it.
        images: inputs and outputs of shape [N, C, H, W] that are passed as contiguous [N, H, W, C].
        plan: options and result of the NPU's compiler, see `Device.plan`; None before it has run.
    """

    nodes: tuple[FxNode, ...]
    inputs: tuple[FxNode, ...]
    outputs: tuple[FxNode, ...]
    decisions: tuple[Decision, ...]
    policy: Policy
    images: frozenset[FxNode] = frozenset()
    plan: object = None

    @functools.cached_property
    def chosen(self) -> Graph:
        """The imported graph with the chosen rewrites."""
        units = [d.unit for d in self.decisions]
        pieces = [u.imported for u in units if isinstance(u.imported, GraphPiece)]
        instead = {n: c.nodes for d in self.decisions for n, c in d.choices.items() if c.rewrites}
        return assemble(units[0].view, pieces, self.inputs, self.outputs, self.images, instead)

    @functools.cached_property
    def graph(self) -> Graph:
        """The chosen graph in its final form, which is compiled."""
        return self.policy.finished(self.chosen.clone())

    @property
    def costs(self) -> dict[str, float]:
        """The estimated cost of each rewritten operator, by name of the program's node."""
        return {
            d.unit.anchor.name: sum(c.cost for c in d.choices.values() if c.rewrites)
            for d in self.decisions
            if d.rewrites
        }

    def finished_by(self) -> dict[str, tuple[str, ...]]:
        """Return names of the rewrites that the final form of the graph needed, by name of the program's node."""
        found: dict[str, dict[str, None]] = {}
        for node in self.graph.nodes if self.policy.finishing else ():
            names = [name for name in node.origin.passes if name in self.policy.finishing]
            for source in node.origin.nodes if names else ():
                found.setdefault(source, {}).update(dict.fromkeys(names))
        return {source: tuple(names) for source, names in found.items()}

    def hand_over(self, images: Collection[FxNode]) -> bool:
        """Make those inputs and outputs that are among ``images`` its images; return True if anything changed."""
        own = frozenset(n for n in (*self.inputs, *self.outputs) if n in images)
        if own == self.images:
            return False
        self.images, self.plan = own, None
        for name in ("chosen", "graph"):
            self.__dict__.pop(name, None)
        return True


@dataclass(frozen=True, repr=False)
class Partitioning(Shown):
    """All partitions of a program and the report on every operator.

    Attributes:
        partitions: of the NPU.
        core: of the core beside it, in int8.
    """

    partitions: tuple[Partition, ...]
    report: DelegationReport
    core: tuple[Partition, ...] = ()

    def __str__(self) -> str:
        return str(self.report)

    def __rich__(self) -> RenderableType:
        return self.report.__rich__()

    def _repr_html_(self) -> str:
        """Return the report's page for a notebook."""
        return self.report._repr_html_()
