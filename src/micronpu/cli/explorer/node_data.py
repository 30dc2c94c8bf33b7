"""Values by which Model Explorer colours nodes: where they run, cycles, bytes and SQNR, from a report and from `blame`.

A set of values has the documented form of node data: for each graph the values by node, and a colour scale.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, zip_longest
from typing import Any

from micronpu.base.errors import FileError
from micronpu.base.files import read_file
from micronpu.base.parsing import parse_json
from micronpu.cli.explorer.graph import MODEL, GraphNode, ProgramGraph
from micronpu.container.trace import StreamTrace, traced
from micronpu.report.delegation import DelegationReport
from micronpu.report.diagnosis import Blame
from micronpu.report.operations import Operation

_COLOURS = {"NPU": "#a7e3b4", "core": "#a9d0f5", "core, float": "#f7c59f"}
_INTEGERS_ON_THE_CORE = "#a9d0f5"
_WARM = [{"stop": 0, "bgColor": "#ffffff"}, {"stop": 1, "bgColor": "#f28e5c"}]
_BAD_IS_LOW = [{"stop": 0, "bgColor": "#e05252"}, {"stop": 1, "bgColor": "#ffffff"}]
_MOST_DECIBELS = 200.0
"""SQNR in dB for a result without any error, because a colour scale cannot show infinity."""

NodeData = dict[str, dict[str, Any]]
"""Values and colour scale by graph: {"results": {node: {"value": ...}}, "gradient": [...]}."""


def check_same_program(data: bytes, program: str, report: DelegationReport, name: str) -> None:
    """Check that a report belongs to a program.

    Args:
        data: the program.
        program, name: names of the two in messages.
    """
    wanted = report.hashes.get("program")
    hint = "micronpu compile MODEL -o PROGRAM.pte --report-json REPORT.json, which writes both"
    if wanted is None:
        raise FileError(f"{name} is a report of a model that was not compiled, not of {program}.", hint=hint)
    if wanted != hashlib.sha256(data).hexdigest():
        raise FileError(f"{name} is the report of another program than {program}.", hint=hint)


def node_data(
    graphs: Sequence[ProgramGraph], report: DelegationReport | None = None, blame: Mapping[str, float] | None = None
) -> dict[str, NodeData]:
    """Return the sets by title; those without any value are left out.

    Args:
        graphs: of the program, and of the report if there is one.
        report: of the program.
        blame: SQNR by node of the exported program, as `read_blame` returns it.
    """
    found: dict[str, NodeData] = {"where it runs": {}, "cycles": {}, "bytes": {}, "SQNR, dB": {}}
    for graph in graphs:
        _put(found["where it runs"], graph, {n.id: n.place for n in graph.nodes if n.place}, [])
        if report is None:
            continue
        shown = _of_model(graph, report) if graph.id == MODEL else _of_program(graph, report)
        cycles = {n: o.cost.cycles for n, o in shown.items() if o.cost is not None}
        moved = {n: o.bytes_read + o.bytes_written + o.constant_bytes for n, o in shown.items()}
        noise = _noise(graph, report, shown, blame or {})
        _put(found["cycles"], graph, cycles, _WARM)
        _put(found["bytes"], graph, moved, _WARM)
        _put(found["SQNR, dB"], graph, noise, _BAD_IS_LOW)
    return {title: own for title, own in found.items() if own}


def read_blame(path: str) -> dict[str, float]:
    """Return SQNR in dB by node, from a file of `micronpu blame --report-json`."""
    wrong = FileError(f"{path} is not what `micronpu blame` writes.", hint="micronpu blame MODEL --report-json PATH")
    try:
        data = parse_json(read_file(path, "The file of `micronpu blame`"))
        if data["format"] != Blame.FORMAT:
            raise wrong
        return {str(layer["node"]): float(layer["sqnr"]) for layer in data["layers"]}
    except (ValueError, KeyError, TypeError) as error:
        raise wrong from error


def _put(set_: NodeData, graph: ProgramGraph, values: Mapping[str, Any], gradient: list[dict[str, Any]]) -> None:
    if not values:
        return
    results = {}
    for node, value in values.items():
        results[node] = {"value": value}
        if isinstance(value, str):
            results[node]["bgColor"] = _COLOURS.get(value, _INTEGERS_ON_THE_CORE)
    set_[graph.id] = {"results": results} | ({"gradient": gradient} if gradient else {})


def _of_model(graph: ProgramGraph, report: DelegationReport) -> dict[str, Operation]:
    """Return the operation of each operator of the model, by the last operator of the operation."""
    order = {node.id: number for number, node in enumerate(graph.nodes)}
    found: dict[str, Operation] = {}
    for operation in (*report.operations, *report.core_operations):
        nodes = [n for n in operation.origin.nodes if n in order]
        if nodes:
            # If one operator became several operations, show the most expensive.
            last = max(nodes, key=order.__getitem__)
            found[last] = max(found.get(last, operation), operation, key=_weight)
    return found


def _weight(operation: Operation) -> tuple[int, int]:
    return operation.cost.cycles if operation.cost is not None else 0, operation.macs


def _of_program(graph: ProgramGraph, report: DelegationReport) -> dict[str, Operation]:
    """Return the operation of the report for nodes inside a partition; its last node has the figures."""
    found: dict[str, Operation] = {}
    for partition in dict.fromkeys(n.partition for n in graph.nodes if n.partition is not None):
        operations = [o for o in report.operations if o.partition == partition]
        names = dict(zip(_tensor_names(operations), operations, strict=True))
        last: dict[int, GraphNode] = {}
        for node in graph.nodes:
            if node.partition == partition:
                if node.tensor in names:
                    found[node.id] = names[node.tensor]
                if node.operator >= 0:
                    last[node.operator] = node
        if last:
            of = _operations_of(graph.traces[partition], operations)
            # If an operation became several operators, the last of them has its figures.
            by_operation = {of[number]: node.id for number, node in sorted(last.items()) if of[number] is not None}
            found |= {node: operations[number] for number, node in by_operation.items() if number is not None}
    return found


def _operations_of(trace: StreamTrace, operations: Sequence[Operation]) -> list[int | None]:
    """Return the index of the report's operation for each operator that the stream's compiler received, or None.

    An operation becomes one or several adjacent operators of the same kind and source line, in the order of the graph.
    """
    given = [(o.kind.lower().removeprefix("lookup"), o.source) for o in trace.operators]
    known = [(o.name.split(" + ")[0].replace("_", ""), traced("", o.origin.source).source) for o in operations]
    if len(given) == len(known):
        return list(range(len(known)))
    found: list[int | None] = []
    nothing: list[int] = []
    for run, own in zip_longest(_runs(given), _runs(known), fillvalue=nothing):
        each = len(run) // len(own) if own and len(run) % len(own) == 0 else 0
        same = bool(each) and given[run[0]] == known[own[0]]
        found += [own[i // each] if same else None for i in range(len(run))]
    return found


def _runs(keys: Sequence[tuple[str, str]]) -> list[list[int]]:
    return [list(own) for _, own in groupby(range(len(keys)), key=keys.__getitem__)]


def _tensor_names(operations: Iterable[Operation]) -> list[str]:
    """Return the names that the compiler gives to results: the operator's, and a number for each kind."""
    counts: Counter[str] = Counter()
    names = []
    for operation in operations:
        kind = operation.name.split(" + ")[0]
        names.append(f"{kind}_{counts[kind]}")
        counts[kind] += 1
    return names


def _noise(
    graph: ProgramGraph, report: DelegationReport, shown: Mapping[str, Operation], blame: Mapping[str, float]
) -> dict[str, float]:
    """Return SQNR by node: of layers from `blame`, of the program's outputs from the report."""
    found: dict[str, float] = {}
    for node in graph.nodes:
        names = shown[node.id].origin.nodes if node.id in shown else (node.id,) if graph.id == MODEL else ()
        known = [blame[name] for name in names if name in blame]
        if known:
            found[node.id] = min(known)
    if report.accuracy is not None and graph.id != MODEL:
        for output in report.accuracy.outputs:
            if output.float_model is not None:
                found[f"output {output.output}"] = output.float_model.sqnr
    known_nodes = {node.id for node in graph.nodes}
    kept = {name: value for name, value in found.items() if name in known_nodes and not math.isnan(value)}
    return {name: max(-_MOST_DECIBELS, min(value, _MOST_DECIBELS)) for name, value in kept.items()}
