"""Verdicts on whether an operator runs on the NPU: the rule, the finding, its place, and what to try."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from micronpu.base.texts import shape_text, short_source
from micronpu.ir.graph import Origin
from micronpu.report.codec import flat
from micronpu.report.operations import Operation

_PLACES = 8
"""Maximum number of source lines that a group names."""


@dataclass(frozen=True)
class Finding:
    """A rule's objection.

    Attributes:
        detail: what was found, such as "10 channels".
        hint: what to try, or "".
    """

    detail: str
    hint: str = ""


def found(detail: str, hint: str = "") -> Finding:
    """Return a rule's objection."""
    return Finding(detail, hint)


@dataclass(frozen=True)
class Rule:
    """A limit of a target.

    Attributes:
        name: stable identifier.
        sentence: what must hold; users and the support table read it.
        check: function of an operator and its operand types that returns a `Finding` or None.
        operators: names of the operators that it applies to, empty for all.
        flavors: names of the rule sets that it belongs to, empty for all.
    """

    name: str
    sentence: str
    check: Callable[..., Finding | None]
    operators: tuple[str, ...] = ()
    flavors: tuple[str, ...] = ()

    def applies(self, operator: str, flavor: str) -> bool:
        return (not self.operators or operator in self.operators) and (not self.flavors or flavor in self.flavors)


SEARCHED_FOR = "is_near_in_int8"
"""Rule of operators that a search for precision left in float."""


@dataclass(frozen=True)
class Reason:
    """Why a node is not delegated.

    Attributes:
        rule: name of the rule that failed.
        sentence: requirement of the rule.
        detail: what was found instead.
        node: name of the node in the exported program.
        source: ``file:line`` of the user's model, or "".
        hint: what to try, or "".
    """

    rule: str
    sentence: str
    detail: str
    node: str
    source: str = ""
    hint: str = ""

    def __str__(self) -> str:
        where = f" ({self.source})" if self.source else ""
        hint = f" Try: {self.hint}." if self.hint else ""
        detail = self.detail if self.detail.endswith((".", "?")) else f"{self.detail}."
        return f"`{self.node}`{where}: {self.sentence} Found: {detail}{hint}"


@dataclass(frozen=True)
class Verdict:
    """Placement of one operator of the program.

    Attributes:
        operator: ATen name with overload.
        origin: origin of the operator in the model.
        partition: index of its partition, or None if it is not delegated.
        reasons: reasons why it is not delegated; empty if it is.
        macs: multiply-accumulate operations; 0 if it has none.
        shape: sizes of the result, or () if it is no tensor.
        rewrites: names of the rewrites without which it would not be delegated.
        core: core that computes it in integers, such as "Cortex-M33 (CMSIS-NN)"; "" if it is delegated or computed in
            float.
        reads: operators, and inputs of the program, whose results it reads, by `node`; without constants.
        cycles: estimated cycles of the core for an operator in float; 0 for others, and before compilation.
        written: the function of the model that it computes with other operators, as "silu(x) -> x * sigmoid(x)", or "".
    """

    ALSO: ClassVar[tuple[str, ...]] = ("node",)

    operator: str
    origin: Origin = field(metadata=flat("nodes", "source", "module"))
    partition: int | None
    reasons: tuple[Reason, ...] = ()
    macs: int = 0
    shape: tuple[int, ...] = ()
    rewrites: tuple[str, ...] = ()
    core: str = ""
    reads: tuple[str, ...] = ()
    cycles: int = 0
    written: str = ""

    @property
    def node(self) -> str:
        """Return the name of the operator's node in the exported program."""
        return self.origin.nodes[0] if self.origin.nodes else ""

    @property
    def delegated(self) -> bool:
        """True if the NPU computes the operator."""
        return self.partition is not None


@dataclass(frozen=True)
class HostGroup:
    """Operators of one kind that stay on the core for the same reasons.

    Attributes:
        verdicts: one or more.
        parts: number of operators that are one for the target, such as those of a table.
        kernel: what computes each in int8, and the estimated cycles of all; "" and 0 if unknown.
    """

    verdicts: tuple[Verdict, ...]
    parts: int = 1
    kernel: str = ""
    cycles: int = 0

    @property
    def title(self) -> str:
        """``silu.default x 7``, or ``table x 5 (div, round, add, to, index)``."""
        own, count = [v.operator for v in self.verdicts[: self.parts]], len(self.verdicts) // self.parts
        names = ", ".join(dict.fromkeys(operator.partition(".")[0] for operator in own))
        name, more = (self.kernel or names, f" ({names})" * bool(self.kernel)) if self.parts > 1 else (own[0], "")
        return (f"{name} x {count}" if count > 1 else name) + more

    @property
    def facts(self) -> tuple[str, ...]:
        """Return shape, node and module, as far as all operators have the same."""
        shapes = {v.shape for v in self.verdicts}
        first = self.verdicts[0]
        own = [first.node, first.origin.module if first.origin.source else ""] if len(self.verdicts) == 1 else []
        own = [f"{self.cycles:,} cycles"] if self.parts > 1 and self.cycles else own
        shape = shape_text(first.shape) if len(shapes) == 1 and first.shape else ""
        return tuple(fact for fact in (shape, *own) if fact)

    @property
    def places(self) -> str:
        """Return source lines, or modules if there are none; a file is named once."""
        ends = self.verdicts[self.parts - 1 :: self.parts]
        found = list(dict.fromkeys(v.origin.source or v.origin.module for v in ends))
        texts, last = [], ""
        for place in (short_source(place) for place in found[:_PLACES] if place):
            file, colon, line = place.rpartition(":")
            texts.append(f":{line}" if colon and file == last else place)
            last = file if colon else ""
        return ", ".join([*texts, *([f"{len(found) - _PLACES} more"] if len(found) > _PLACES else [])])


def host_groups(verdicts: Iterable[Verdict], kernels: Iterable[Operation] = ()) -> list[HostGroup]:
    """Group operators by what they are, where they run and why; those that are refused as one are one."""
    every, units = tuple(verdicts), dict[str, list[Verdict]]()
    nodes = {verdict.node for verdict in every}
    for verdict in every:
        head = verdict.reasons[0].node if verdict.reasons else verdict.node
        units.setdefault(head if head in nodes else verdict.node, []).append(verdict)
    groups: dict[object, list[list[Verdict]]] = {}
    for unit in units.values():
        why = tuple((r.rule, r.detail, r.hint) for r in unit[0].reasons)
        groups.setdefault((*(v.operator for v in unit), unit[0].core, why), []).append(unit)
    made = {node: o for o in kernels for node in o.origin.nodes[:1]}
    found = []
    for same in groups.values():
        computed = [made[unit[0].node] for unit in same if unit[0].node in made]
        cycles = sum(o.cost.cycles for o in computed if o.cost is not None)
        own = tuple(verdict for unit in same for verdict in unit)
        found.append(HostGroup(own, len(same[0]), computed[0].name if computed else "", cycles))
    return found
