"""Verdict and partition for every operator of a quantized program.

The unit of the decision is an operator with the quantization round it: the dequantizes that feed it, a clamp that it
takes into itself, and the quantizes of its result.  The same importer that later builds the graph says whether a unit
can be imported, and the target's rules look at the operators that come of it, so that a verdict and the compilation
cannot disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch.fx import Node as FxNode

from micronpu.errors import UnsupportedError
from micronpu.frontend.importer import Importer, clamp_behind, import_of
from micronpu.frontend.program import (
    ProgramView,
    is_compute,
    is_dequantize,
    is_dequantize_channel,
    is_float_cast,
    is_getitem,
    is_index,
    is_quantize,
    origin_of,
    overload_name,
    static_shape,
    value_of,
)
from micronpu.ir.graph import Graph
from micronpu.ir.graph import Node as GraphNode
from micronpu.ir.op import Op
from micronpu.ir.way import WAYS, Composition
from micronpu.ops import ATEN_IMPORTS
from micronpu.ops.movement import Reshape, Transpose
from micronpu.partition.grouping import group
from micronpu.partition.order import ProgramOrder
from micronpu.passes.cleanup import returned_operand
from micronpu.report.delegation import DelegationReport
from micronpu.report.verdict import Reason, Verdict

Check = Callable[[GraphNode], list[Reason]]
Exclude = Callable[[FxNode], Reason | None]
FindCure = Callable[[GraphNode], str | None]
"""Name of a rewrite that makes an operator fit for the target, or None."""

IMPORTED = "is_imported"
IMPORTED_SENTENCE = "The operator, in this form and quantized, is one that micronpu can express."
COMPUTES = "computes"
COMPUTES_SENTENCE = "A partition computes something; moving values to the NPU and back would only cost time."


@dataclass
class Unit:
    """An operator with the quantization round it.

    Attributes:
        head: the operator; None for a dequantize that meets a quantize.
        body: operator, fused clamp and unpacking, in execution order.
        quantizes: quantize nodes of the result.
        reads: integer nodes (quantizes, inputs of the program) that the operands are made from.
        dequantizes: nodes between ``reads`` and ``body``.
        constants: dequantizes and transposes of constants.
    """

    head: FxNode | None
    body: list[FxNode]
    quantizes: list[FxNode]
    reads: list[FxNode] = field(default_factory=list)
    dequantizes: list[FxNode] = field(default_factory=list)
    constants: list[FxNode] = field(default_factory=list)
    reasons: list[Reason] = field(default_factory=list)
    macs: int = 0
    operations: int = 0  # NPU operations, before the passes, but for those that return an operand as it is
    computes: bool = True  # whether one of them does more than to move values
    rewrites: dict[str, None] = field(default_factory=dict)  # names in order, of those that make it fit

    @property
    def anchor(self) -> FxNode:
        return self.body[0] if self.body else self.quantizes[0]

    @property
    def moves_only(self) -> bool:
        entry = ATEN_IMPORTS.get(overload_name(self.head)) if self.head is not None else None
        return self.head is None or not self.computes or (entry is not None and entry.moves_only)


@dataclass(frozen=True)
class Group:
    """A partition: units and its border.

    Attributes:
        nodes: every node that belongs to it, in execution order.
        inputs: integer nodes read from outside, in the order in which ExecuTorch makes arguments of them: as they are
            first read.
        outputs: quantize nodes whose integers are read outside.
    """

    nodes: tuple[FxNode, ...]
    inputs: tuple[FxNode, ...]
    outputs: tuple[FxNode, ...]


@dataclass(frozen=True)
class Partitioning:
    """All partitions of a program and the report on every operator."""

    groups: tuple[Group, ...]
    report: DelegationReport


def partition(
    view: ProgramView,
    target: str,
    check: Check,
    exclude: Exclude | None = None,
    *,
    cure: FindCure | None = None,
    allow_no_op_partitions: bool = False,
    allow_empty: bool = False,
    shared: Collection[FxNode] = (),
    refused: Mapping[str, Reason] | None = None,
    free: tuple[type[Op], ...] = (),
) -> Partitioning:
    """Decides for every operator and groups what is supported.

    Args:
        view: the quantized program.
        target: name for the report.
        check: the target's rules for one operator of the graph.
        exclude: a reason why the user does not want a node delegated, or None.
        cure: finds a rewrite for an operator that breaks a rule.
        allow_no_op_partitions: also make partitions that only move values.
        allow_empty: also make partitions with nothing to run at all.
        shared: dequantizes that no partition may read, because something else reads them as well.
        refused: by name of the node, why the compiler could not take it when it was tried.
        free: operators that leave nothing to run, such as a reshape where that moves no byte.
    """
    units, unit_of = _units(view)

    def excluded(node: FxNode) -> Reason | None:
        known = _torn(node, shared) or (refused or {}).get(node.name)
        return known or (exclude(node) if exclude is not None else None)

    for unit in units:
        _judge(view, unit, check, excluded, cure, free)
    vertices = _vertices(view, units, unit_of)
    chosen = group([v.sources for v in vertices], [v.unit is not None and not v.unit.reasons for v in vertices])
    groups: list[Group] = []
    number_of: dict[int, int] = {}
    order = ProgramOrder(view.graph.nodes)
    for members in chosen:
        joined = [u for v in members if (u := vertices[v].unit) is not None]
        empty = not allow_empty and not any(u.operations for u in joined)
        if empty or (not allow_no_op_partitions and all(u.moves_only for u in joined)):
            for unit in joined:
                unit.reasons.append(
                    _reason(unit.anchor, COMPUTES, COMPUTES_SENTENCE, "only operators that move or return values")
                )
            continue
        for unit in joined:
            number_of[id(unit)] = len(groups)
        if groups:
            order.cut(groups[-1].nodes, groups[-1].inputs, groups[-1].outputs)
        groups.append(_make_group(joined, order))
    verdicts = []
    seen: set[int] = set()
    for node in view.compute_nodes():
        owner = unit_of.get(node)
        if owner is None:
            if not _feeds_only_constants(view, node):
                verdicts.append(_float_verdict(node))
        elif owner.head is node:
            seen.add(id(owner))
            verdict = _verdict(node, number_of.get(id(owner)), tuple(owner.reasons), owner.macs)
            verdicts.append(replace(verdict, rewrites=tuple(owner.rewrites) if verdict.delegated else ()))
        elif is_compute(node):
            verdicts.append(_verdict(node, number_of.get(id(owner)), tuple(owner.reasons)))
    return Partitioning(tuple(groups), DelegationReport(target, tuple(verdicts)))


def _reason(node: FxNode, rule: str, sentence: str, detail: str, hint: str = "") -> Reason:
    origin = origin_of(node)
    return Reason(rule, sentence, detail, node.name, origin.source, hint)


def _torn(node: FxNode, shared: Collection[FxNode]) -> Reason | None:
    torn = next((n for n in node.all_input_nodes if n in shared), None)
    if torn is None:
        return None
    return _reason(
        node,
        "dequantize_is_its_own",
        "The operands of an operator are dequantized for it alone.",
        f"`{torn.name}` is also read by operators outside the partition",
        "transform_passes=[..., micronpu.partition.entry.split_dequantizes], which gives every reader its own",
    )


def _float_verdict(node: FxNode) -> Verdict:
    """The verdict on an operator whose result nobody quantizes."""
    try:
        entry = import_of(node)
        detail = "its result is not quantized"
        hint = "quantize the model with the quantizer of the target; `program.report` names what stayed in float"
        if entry.is_table:
            detail += f"; `{entry.overload}` is a table of a function of one element, which not every chip looks up"
            hint = _hint_without_table(entry.overload)
        dtype = getattr(value_of(node), "dtype", torch.float32)
        if dtype is not torch.float32:
            detail = f"its result is {str(dtype).removeprefix('torch.')}, and only float32 is quantized"
            hint = "model.float(), with example inputs of float32" if dtype.is_floating_point else ""
    except UnsupportedError as error:
        detail, hint = error.what, error.hint
    reason = _reason(node, IMPORTED, IMPORTED_SENTENCE, detail, hint)
    return _verdict(node, None, (reason,))


def _hint_without_table(overload: str) -> str:
    """What to try where a chip has no tables, and the composition of the overload, if it has one, did not fit."""
    composed = next((w for w in WAYS[overload] if isinstance(w, Composition)), None)
    if composed is not None:
        return f"a call of the form that is written as others: {composed.sentence.rstrip('.')}"
    return "a target with tables, see docs/support-table.md, or leave it to the core as it is"


def _verdict(node: FxNode, partition: int | None, reasons: tuple[Reason, ...], macs: int = 0) -> Verdict:
    name = overload_name(node) or str(node.target)
    return Verdict(name, origin_of(node), partition, reasons, macs, static_shape(node) or ())


def _feeds_only_constants(view: ProgramView, node: FxNode) -> bool:
    """Whether the node is part of making weights (a transpose of them), which is compile-time work."""
    sources = [a for a in node.all_input_nodes]
    return bool(sources) and all(
        view.constant(s) is not None
        or ((is_dequantize(s) or is_dequantize_channel(s)) and _feeds_only_constants(view, s))
        for s in sources
    )


def _units(view: ProgramView) -> tuple[list[Unit], dict[FxNode, Unit]]:
    units: list[Unit] = []
    unit_of: dict[FxNode, Unit] = {}
    for node in view.graph.nodes:
        if not is_quantize(node):
            continue
        source = node.args[0]
        if not isinstance(source, FxNode):
            continue
        if source in unit_of and not is_dequantize(source):
            unit_of[source].quantizes.append(node)
            unit_of[node] = unit_of[source]
            continue
        unit = _unit(view, source, node)
        if unit is None:
            continue
        units.append(unit)
        for member in (*unit.body, *unit.quantizes):
            unit_of[member] = unit
    return units, unit_of


def _unit(view: ProgramView, source: FxNode, quantize: FxNode) -> Unit | None:
    if is_dequantize(source):
        if view.constant(source.args[0]) is not None:
            return None
        unit = Unit(None, [], [quantize])
        _add_operand(view, unit, source)
        return unit
    body = [source]
    if is_getitem(source) or is_float_cast(source):
        producer = source.args[0]
        assert isinstance(producer, FxNode)
        body.insert(0, producer)
    if not is_compute(body[0]):
        return None
    previous = body[0].args[0] if body[0].args else None
    if isinstance(previous, FxNode) and clamp_behind(previous) is body[0]:
        body.insert(0, previous)
    unit = Unit(body[0], body, [quantize])
    for operand in body[0].all_input_nodes:
        _add_operand(view, unit, operand)
    return unit


def _add_operand(view: ProgramView, unit: Unit, operand: FxNode) -> None:
    """Files an operand: a dequantized activation, or whatever makes a constant."""
    if view.constant(operand) is not None:
        return
    if is_dequantize(operand) or is_dequantize_channel(operand) or _feeds_only_constants(view, operand):
        source = operand.args[0]
        assert isinstance(source, FxNode)
        if is_dequantize(operand) and view.constant(source) is None:
            unit.dequantizes.append(operand)
            if source not in unit.reads:
                unit.reads.append(source)
        else:
            unit.constants.append(operand)
            _add_operand(view, unit, source)
    elif is_index(operand):
        unit.reads.append(operand)


def _judge(
    view: ProgramView, unit: Unit, check: Check, exclude: Exclude, cure: FindCure | None, free: tuple[type[Op], ...]
) -> None:
    """Fills in the unit's reasons and MACs."""
    # A fused clamp can be unwanted as well as the operator that takes it.
    unit.reasons += [reason for n in (*unit.body, *unit.quantizes) if (reason := exclude(n)) is not None]
    if unit.reasons:
        return
    for node in unit.body:
        outside = [u for u in node.users if u not in unit.body and u not in unit.quantizes]
        if outside:
            detail = f"`{outside[0].name}` reads the float result of `{node.name}`"
            unit.reasons.append(_reason(unit.anchor, IMPORTED, IMPORTED_SENTENCE, detail, "quantize that operator too"))
            return
    importer = Importer(view)
    try:
        for quantize in unit.quantizes:
            importer.add(quantize)
    except UnsupportedError as error:
        unit.reasons.append(_reason(unit.anchor, IMPORTED, IMPORTED_SENTENCE, error.what, error.hint))
        return
    graph: Graph = importer.builder.graph
    working = [n for n in graph.nodes if returned_operand(n) is None]
    unit.operations = sum(not isinstance(n.op, free) for n in working)
    unit.computes = not all(isinstance(n.op, (Transpose, Reshape)) for n in working)
    if not unit.computes and len(working) < len(graph.nodes):
        unit.operations = 0  # what is left are changes of layout for an operator that does nothing
    for operation in graph.nodes:
        unit.macs += operation.op.macs(operation.output.type, *operation.input_types)
        reasons = check(operation)
        name = cure(operation) if reasons and cure is not None else None
        if name is not None:
            unit.rewrites[name] = None
        else:
            unit.reasons += [r for r in reasons if r not in unit.reasons]


@dataclass
class _Vertex:
    unit: Unit | None
    sources: list[int]


def _vertices(view: ProgramView, units: list[Unit], unit_of: dict[FxNode, Unit]) -> list[_Vertex]:
    """Units that the target can run, and the nodes of the host, in execution order with what each waits for.

    A unit stands where its first quantize stands: its operands are computed by then and nobody reads it earlier.
    What is not for the target stands node by node, since the host may read and write floats in the middle of a unit.
    Dequantizes are transparent: whoever reads one waits for the integers behind it, since every reader may have a
    dequantize of its own.
    """
    home = {node: unit for node, unit in unit_of.items() if not unit.reasons}
    first = {id(u): u.quantizes[0] for u in units if not u.reasons}
    index: dict[FxNode, int] = {}
    vertices: list[_Vertex] = []
    for node in view.graph.nodes:
        unit = home.get(node)
        if unit is not None and node is not first[id(unit)]:
            if first[id(unit)] in index:
                index[node] = index[first[id(unit)]]
            continue
        if unit is None and is_dequantize(node):
            if node.args[0] in index:
                index[node] = index[node.args[0]]
            continue
        sources = unit.reads if unit is not None else node.all_input_nodes
        vertices.append(_Vertex(unit, list(dict.fromkeys(index[s] for s in sources if s in index))))
        index[node] = len(vertices) - 1
    return vertices


def _make_group(units: list[Unit], order: ProgramOrder) -> Group:
    members = {n for u in units for n in (*u.body, *u.quantizes, *u.dequantizes, *u.constants)}
    nodes = sorted(members, key=order.positions(members).__getitem__)
    produced = {q for u in units for q in u.quantizes}
    external = {s for u in units for s in u.reads} - produced
    inputs = dict.fromkeys(s for n in nodes for s in n.all_input_nodes if s in external)
    inside = {d for u in units for d in u.dequantizes}
    outputs = [q for q in nodes if q in produced and _read_outside(q, members, inside)]
    return Group(tuple(nodes), tuple(inputs), tuple(outputs))


def _read_outside(quantize: FxNode, members: set[FxNode], inside: set[FxNode]) -> bool:
    """Whether anything but the group reads the integers, directly or through a dequantize that both use."""
    return any(user not in inside or any(reader not in members for reader in user.users) for user in quantize.users)
