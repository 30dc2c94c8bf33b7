"""Verdict and partition for every operator of a quantized program, decided once.

The unit of the decision is an operator with the quantization around it: its dequantizes, a fused clamp, and the
quantizes of its result.  Each unit is imported once.  The NPU's rules examine the imported unit, rewrites are applied
to it if they refuse it, and the graph of its partition is made of it, so that the report describes the payload.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from micronpu.base.errors import UnsupportedError
from micronpu.base.texts import plural
from micronpu.frontend import program
from micronpu.frontend.facts import SEARCHED, SETTING, WRITTEN
from micronpu.frontend.graphs import Node as FxNode
from micronpu.frontend.graphs import nodes_where
from micronpu.frontend.importer import import_of
from micronpu.frontend.units import Unit, feeds_only_constants, find_units
from micronpu.ir.lowering import LOWERINGS, Decomposition
from micronpu.ops.movement import Reshape, Transpose
from micronpu.partition.partition import (
    BOUNDARY,
    COMPUTES,
    COMPUTES_SENTENCE,
    IMPORTED,
    IMPORTED_SENTENCE,
    Decision,
    Partition,
    Partitioning,
    Policy,
    ProgramOrder,
    agree_on_images,
    group,
    outlined_order,
    reason_at,
)
from micronpu.passes.fusion import returned_operand
from micronpu.passes.rewrite import Choice
from micronpu.report.delegation import DelegationReport
from micronpu.report.verdict import SEARCHED_FOR, Reason, Verdict


def reads_of(view: program.ProgramView, verdicts: Collection[FxNode]) -> dict[FxNode, tuple[str, ...]]:
    """Return the names of nodes with a verdict, and of inputs, whose results a node reads, through other nodes."""
    shown = {*verdicts, *view.inputs}
    through: dict[FxNode, dict[str, None]] = {}
    found: dict[FxNode, tuple[str, ...]] = {}
    for node in view.graph.nodes:
        sources = dict.fromkeys(
            name for n in node.all_input_nodes for name in ((n.name,) if n in shown else through.get(n, ()))
        )
        through[node] = sources
        if node in shown:
            found[node] = tuple(sources)
    return found


def float_verdict(node: FxNode) -> Verdict:
    """Return the verdict on an operator whose result is not quantized."""
    detail = _on_integers(node)
    return verdict_on(node, None, (_not_imported(node, *((detail, "") if detail else _why_float(node))),))


def _not_imported(node: FxNode, detail: str, hint: str) -> Reason:
    """Return why an operator is not imported: the search for precision left it in float, or what is given."""
    if not SEARCHED.of(node):
        return reason_at(node, IMPORTED, IMPORTED_SENTENCE, detail, hint)
    detail = "the search for precision left it in float, which is nearer to the float model"
    return reason_at(node, SEARCHED_FOR, IMPORTED_SENTENCE, detail, 'quantization="int8", which quantizes it')


def _on_integers(node: FxNode) -> str:
    """Return the detail for integers that are computed from integers; "" for any other operator."""
    types = [getattr(program.value_of(n), "dtype", None) for n in (node, *node.all_input_nodes)]
    if types[0] is torch.bool or any(t is None or t.is_floating_point or t.is_complex for t in types):
        return ""
    return (
        f"it computes {str(types[0]).removeprefix('torch.')} from integers, as positions and indices are: the host "
        "does that in no time, and int8 cannot represent them"
    )


def _why_float(node: FxNode) -> tuple[str, str]:
    """Return why an operator is not quantized, and what to try."""
    if SETTING.of(node) == (None,):
        return "the settings of its quantizer leave it in float", ""
    try:
        entry = import_of(node)
        detail = "its result is not quantized"
        hint = "quantize the model with the quantizer of the target; `program.report` names what stayed in float"
        if entry.is_table:
            detail += f"; `{entry.overload}` is a table of a function of one element, which not every chip looks up"
            hint = _as_others(entry.overload) or (
                "a target with tables, see docs/support-table.md, or leave it to the core as it is"
            )
        dtype = getattr(program.value_of(node), "dtype", torch.float32)
        if dtype is not torch.float32:
            detail = f"its result is {str(dtype).removeprefix('torch.')}, and only float32 is quantized"
            hint = "model.float(), with example inputs of float32" if dtype.is_floating_point else ""
            hint = _as_others(entry.overload, if_decides=True) or hint
    except UnsupportedError as error:
        detail, hint = error.what, error.hint
    return detail, hint


def _as_others(overload: str, *, if_decides: bool = False) -> str:
    """Return the hint for an operator whose decomposition did not fit this call; "" without a decomposition."""
    ways = (w for w in LOWERINGS.get(overload, ()) if isinstance(w, Decomposition) and (w.decides or not if_decides))
    way = next(ways, None)
    return "" if way is None else f"a call of the form that is written as others: {way.sentence.rstrip('.')}"


def verdict_on(node: FxNode, partition: int | None, reasons: tuple[Reason, ...] = (), macs: int = 0) -> Verdict:
    name = program.overload_name(node) or str(node.target)
    shape = program.static_shape(node) or ()
    return Verdict(name, program.origin_of(node), partition, reasons, macs, shape, written=WRITTEN.of(node))


class Decisions:
    """Every decision about one program, each taken once.

    Args:
        view: the quantized program.
        npu: policy of the NPU; None without one.
        beside: policy of the core for the remaining operators; None if nothing computes them in int8.
    """

    def __init__(
        self, view: program.ProgramView, npu: Policy | None, beside: Policy | None = None, name: str = ""
    ) -> None:
        self.view = view
        self._npu, self._beside = npu, beside
        self._name = name or (npu.name if npu is not None else "")
        self._units, self._unit_of = find_units(view)
        self._refused: dict[str, Reason] = {}
        self._shared: set[FxNode] = set()
        self._known: dict[Policy, dict[Unit, Decision]] = {}

    def refuse(self, reasons: Mapping[str, Reason]) -> bool:
        """Keep operators off the NPU that its compiler refused, by their node's name; return True if any is new."""
        new = reasons.keys() - self._refused.keys()
        self._refused |= reasons
        return bool(new)

    def keep_whole(self, shared: Collection[FxNode]) -> bool:
        """Keep operators off the NPU whose dequantizes have other readers; return True if any is new."""
        new = set(shared) - self._shared
        self._shared |= new
        return bool(new)

    def partitioning(self) -> Partitioning:
        """Return the partitions that follow from the known facts, and the report."""
        npu = self._npu
        delegated = [] if npu is None else self._partitions(npu, self.view.graph.nodes, self._units)
        number = {d.unit: i for i, p in enumerate(delegated) for d in p.decisions}
        core: list[Partition] = []
        if self._beside is not None:
            left = [u for u in self._units if u not in number]
            core = self._partitions(self._beside, outlined_order(self.view.graph, delegated), left, delegated)
            agree_on_images((*delegated, *core))
        on_core = {d.unit: names for p in core for names in (p.finished_by(),) for d in p.decisions}
        verdicts = self._verdicts(number, on_core)
        notes = npu.notes if npu is not None else ()
        notes += tuple(
            f"Partition {i} only moves values: it saves the host "
            f"{plural(sum(d.unit.head is not None for d in p.decisions), 'operator')} in float."
            for i, p in enumerate(delegated)
            if npu is not None and npu.allow_moves and all(d.moves_only for d in p.decisions)
        )
        return Partitioning(
            tuple(delegated), DelegationReport(self._name, verdicts, notes, has_npu=npu is not None), tuple(core)
        )

    # -- one unit

    def _decision(self, policy: Policy, unit: Unit) -> Decision:
        known = self._known.setdefault(policy, {})
        if unit not in known:
            known[unit] = _decide(policy, unit)
        decision = known[unit]
        if policy is self._npu and not decision.reasons:
            # A fused clamp can be refused as well as the operator that it is fused into.
            nodes = (*unit.body, *unit.quantizes)
            decision.reasons += [r for n in nodes if (r := _torn(n, self._shared) or self._refused.get(n.name))]
        return decision

    # -- all of them

    def _partitions(
        self, policy: Policy, nodes: Iterable[FxNode], units: Sequence[Unit], calls: Sequence[Partition] = ()
    ) -> list[Partition]:
        """Group accepted units into partitions."""
        chosen = list(nodes)
        decided = [self._decision(policy, u) for u in units]
        taken = [d for d in decided if not d.reasons]
        vertices = _vertices(chosen, taken, calls)
        groups = group([v.sources for v in vertices], [v.decision is not None for v in vertices])
        order = ProgramOrder(chosen)
        made: list[Partition] = []
        # The next group is at the end.
        waiting = [[d for v in members if (d := vertices[v].decision) is not None] for members in reversed(groups)]
        is_cut = True
        while waiting:
            joined = waiting.pop()
            if not _may_stand(policy, joined):
                continue
            if not is_cut and not calls:
                order.cut(made[-1].nodes, made[-1].inputs, made[-1].outputs)
            is_cut = True
            partition = _partition(joined, order, policy)
            most = max(len(partition.inputs), len(partition.outputs))
            if len(joined) > 1 and most > (policy.most_tensors or math.inf):
                # No value returns to a partition, so that its second half delays nothing in its first half.
                middle = len(joined) // 2
                waiting += [joined[middle:], joined[:middle]]
                continue
            made.append(partition)
            is_cut = False
        return made

    def _verdicts(
        self, number: Mapping[Unit, int], on_core: Mapping[Unit, Mapping[str, tuple[str, ...]]]
    ) -> tuple[Verdict, ...]:
        verdicts: dict[FxNode, Verdict] = {}
        for node in nodes_where(self.view, program.is_compute):
            unit = self._unit_of.get(node)
            if unit is None:
                if not feeds_only_constants(self.view, node):
                    verdicts[node] = float_verdict(node)
            elif unit.head is node or program.is_compute(node):
                verdicts[node] = self._verdict(node, unit, number.get(unit), on_core.get(unit))
        reads = reads_of(self.view, verdicts)
        return tuple(replace(verdict, reads=reads[node]) for node, verdict in verdicts.items())

    def _verdict(
        self, node: FxNode, unit: Unit, number: int | None, on_core: Mapping[str, tuple[str, ...]] | None
    ) -> Verdict:
        first = next(d for p in (self._npu, self._beside) if p is not None for d in (self._decision(p, unit),))
        made = verdict_on(node, number, macs=first.macs if unit.head is node else 0)
        if number is not None:
            return replace(made, rewrites=first.rewrites if unit.head is node else ())
        reasons = dict.fromkeys(() if self._npu is None else self._reasons(self._npu, unit))
        if on_core is not None and self._beside is not None:
            rewrites = on_core.get(node.name, ()) if unit.head is node else ()
            return replace(made, reasons=tuple(reasons), core=self._beside.name, rewrites=rewrites)
        if self._beside is not None:
            reasons |= dict.fromkeys(self._reasons(self._beside, unit))
        return replace(made, reasons=tuple(reasons))

    def _reasons(self, policy: Policy, unit: Unit) -> list[Reason]:
        """Return why a policy refuses a unit; an accepted one may be among units that only move values."""
        found = self._decision(policy, unit).reasons
        return found or [
            reason_at(unit.anchor, COMPUTES, COMPUTES_SENTENCE, "only operators that move or return values")
        ]


def _decide(policy: Policy, unit: Unit) -> Decision:
    decision = Decision(unit)
    decision.reasons += [r for n in (*unit.body, *unit.quantizes) if (r := policy.exclude(n)) is not None]
    if decision.reasons:
        return decision
    imported = unit.imported
    if isinstance(imported, UnsupportedError):
        decision.reasons.append(_not_imported(unit.anchor, imported.what, imported.hint))
        return decision
    most = max(len(unit.reads), len(unit.quantizes))
    if policy.most_tensors is not None and most > policy.most_tensors:
        sentence = f"A call of the NPU has at most {policy.most_tensors} inputs and as many outputs."
        decision.reasons.append(
            reason_at(unit.anchor, BOUNDARY, sentence, f"{most} of them", "parts of it, joined later")
        )
        return decision
    working = [n for n in imported.nodes if returned_operand(n) is None]
    decision.operations = sum(not isinstance(n.op, policy.free) for n in working)
    decision.computes = not all(isinstance(n.op, (Transpose, Reshape)) for n in working)
    decision.moves = not all(isinstance(n.op, Reshape) for n in working)
    if not decision.computes and len(working) < len(imported.nodes):
        decision.operations, decision.moves = 0, False  # changes of layout for an operator that does nothing
    for node in imported.nodes:
        decision.macs += node.op.macs(node.output.type, *node.input_types)
        answer = policy.decide(node)
        if isinstance(answer, Choice):
            decision.choices[node] = answer
        else:
            decision.reasons += [r for r in answer if r not in decision.reasons]
    return decision


def _may_stand(policy: Policy, joined: Sequence[Decision]) -> bool:
    """Return True if the units compute enough to be a partition."""
    if not policy.allow_empty and not any(d.operations for d in joined):
        return False
    return policy.allow_no_op_partitions or any(
        not d.moves_only or (policy.allow_moves and d.moves and d.unit.head is not None) for d in joined
    )


def _torn(node: FxNode, shared: Collection[FxNode]) -> Reason | None:
    torn = next((n for n in node.all_input_nodes if n in shared), None)
    if torn is None:
        return None
    return reason_at(
        node,
        "dequantize_is_its_own",
        "The operands of an operator are dequantized for it alone.",
        f"`{torn.name}` is also read by operators outside the partition",
        "transform_passes=[..., micronpu.partition.entry.split_dequantizes], which gives every reader its own",
    )


@dataclass
class _Vertex:
    decision: Decision | None
    sources: list[int]


def _vertices(nodes: Sequence[FxNode], taken: Sequence[Decision], calls: Sequence[Partition]) -> list[_Vertex]:
    """Return accepted units and nodes of the core in execution order, with the indices that each waits for.

    The position of a unit is that of its first quantize: its operands are computed by then, and its result is not read
    earlier. Refused nodes are separate vertices, since the core may read and write floats inside a unit. Dequantizes
    are transparent: their readers wait for the integers before them, since every reader may have its own dequantize.
    """
    home = {n: d for d in taken for n in (*d.unit.body, *d.unit.quantizes)}
    called = {output: p.inputs for p in calls for output in p.outputs}
    place: dict[Decision, int] = {}
    index: dict[FxNode, int] = {}
    vertices: list[_Vertex] = []
    for node in nodes:
        decision = home.get(node)
        if decision is not None and (decision in place or node not in decision.unit.quantizes):
            if decision in place:
                index[node] = place[decision]
            continue
        if decision is None and (integers := program.integers_behind(node)) is not node:
            if integers in index:
                index[node] = index[integers]
            continue
        sources = decision.unit.reads if decision is not None else called.get(node, node.all_input_nodes)
        vertices.append(_Vertex(decision, list(dict.fromkeys(index[s] for s in sources if s in index))))
        index[node] = len(vertices) - 1
        if decision is not None:
            place[decision] = index[node]
    return vertices


def _partition(decisions: Sequence[Decision], order: ProgramOrder, policy: Policy) -> Partition:
    units = [d.unit for d in decisions]
    members = {n for u in units for n in u.nodes}
    nodes = sorted(members, key=order.positions(members).__getitem__)
    produced = {q for u in units for q in u.quantizes}
    external = {s for u in units for s in u.reads} - produced
    inputs = dict.fromkeys(s for n in nodes for s in n.all_input_nodes if s in external)
    outputs = [q for q in nodes if q in produced and not members.issuperset(program.readers_of(q))]
    return Partition(tuple(nodes), tuple(inputs), tuple(outputs), tuple(decisions), policy)
