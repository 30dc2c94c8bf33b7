"""Model Explorer's graphs of a program or a report, as plain values, which `main` converts, and colours of their nodes.

Nodes are coloured by where they run, cycles, bytes and SQNR, from a report and from `blame`. A set of values has the
documented form of node data: for each graph the values by node, and a colour scale.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, zip_longest
from math import prod
from typing import Any

from micronpu.base.errors import FileError, PayloadError
from micronpu.base.files import read_file
from micronpu.base.parsing import parse_json
from micronpu.container.payload import parse
from micronpu.container.trace import StreamTrace, graph_key, trace_of, traced
from micronpu.host.container_view import container_view
from micronpu.program.plan import Plan, PlanCall, PlanValue, read_plan
from micronpu.program.pte import read_pte
from micronpu.report.delegation import DelegationReport
from micronpu.report.diagnosis import Blame
from micronpu.report.inside import Inside, Pairs, shape_text
from micronpu.report.operations import Operation
from micronpu.report.verdict import Verdict
from micronpu.targets.registry import backend_with

Source = tuple[str, int]
"""A node's identifier, and the index of its output."""
Made = list[tuple[Source, ...]]
"""Sources of each result of a delegate."""


@dataclass(frozen=True)
class GraphNode:
    """A node.

    Attributes:
        id: unique in its graph.
        label: text on the node.
        namespace: the layers around it, outermost first, with "/" between.
        reads: sources of its operands, without constants.
        attributes: names and texts.
        outputs: names and texts of each output.
        subgraph: identifier of a graph with details, or "".
        place: "NPU", "core" and the like; "" if nothing computes it.
        partition: index of the partition on the NPU.
        operator: index of the traced operator of a stream's operation; -1 if unknown.
        tensor: name of its result in the integer graph, or "".
    """

    id: str
    label: str
    namespace: str = ""
    reads: tuple[Source, ...] = ()
    attributes: Pairs = ()
    outputs: tuple[Pairs, ...] = ()
    subgraph: str = ""
    place: str = ""
    partition: int | None = None
    operator: int = -1
    tensor: str = ""


def inside_nodes(
    prefix: str,
    namespace: str,
    title: str,
    look: Callable[[], Inside],
    arguments: Sequence[Source | None],
    subgraph: str = "",
    partition: int | None = None,
) -> tuple[list[GraphNode], Made]:
    """Return the nodes of a delegate call, and the sources of its results.

    Args:
        prefix, namespace: of the identifiers, and of the nodes.
        title: label of the one node, with the reason and no results, if ``look`` cannot read the inside.
        arguments: sources of the call's arguments; None for those that no node of the method has computed.
    """

    def given(number: int) -> tuple[Source, ...]:
        found = arguments[number] if 0 <= number < len(arguments) else None
        return (found,) if found is not None else ()

    def sources(reads: Iterable[tuple[int, int]]) -> tuple[Source, ...]:
        made = tuple((f"{prefix}{i}", output) for i, output in reads if i >= 0)
        return made + tuple(s for i, _ in reads if i < 0 for s in given(-1 - i))

    def closed(why: str) -> tuple[list[GraphNode], Made]:
        reads = tuple(source for source in arguments if source is not None)
        text = (("inside", f"not shown: {why}"),)
        return [GraphNode(f"{prefix}0", title, namespace, reads, text, (), subgraph, "NPU", partition)], []

    try:
        inside = look()
    except PayloadError as error:
        return closed(str(error).rstrip("."))
    nodes = [
        GraphNode(
            f"{prefix}{number}",
            step.label,
            namespace,
            sources(step.reads),
            step.attributes,
            step.outputs,
            subgraph,
            "NPU",
            partition,
            step.operator,
            step.tensor,
        )
        for number, step in enumerate(inside.steps)
    ]
    if not nodes:
        return closed(inside.stopped or "it has no operations")
    return nodes, [sources(made) for made in inside.results]


MODEL = "operators"
"""Identifier of the graph of a report."""


@dataclass(frozen=True)
class ProgramGraph:
    """One graph.

    Attributes:
        id: the method of a program, "METHOD, partition 0: integer graph" for a graph stored with a payload, or `MODEL`.
        nodes: in execution order.
        traces: operator names of each partition's command stream.
    """

    id: str
    nodes: tuple[GraphNode, ...]
    traces: Mapping[int, StreamTrace] = field(default_factory=dict)


def program_graphs(data: bytes, name: str = "The program") -> tuple[ProgramGraph, ...]:
    """Return the graphs of a `.pte`: each method with the inside of its delegates, then the graphs that it carries.

    Args:
        data: the file's contents.
        name: name in messages, such as the path.
    """
    methods: list[ProgramGraph] = []
    carried: list[ProgramGraph] = []
    for method in read_pte(data, name=name).methods:
        plan, summary = read_plan(data, name=name, method=method)
        mine: dict[int, str] = {}
        traces: dict[int, StreamTrace] = {}
        for number, delegate in enumerate(plan.delegates):
            blob = summary.named_data.get(graph_key(delegate.payload))
            if blob is not None:
                mine[number] = f"{method}, partition {number}: integer graph"
                carried.append(ProgramGraph(mine[number], _carried(blob, number)))
            trace = trace_of(delegate.payload, summary.named_data)
            if trace is not None:
                traces[number] = trace
        methods.append(ProgramGraph(method, tuple(_Method(plan, summary.named_data, mine).nodes()), traces))
    return (*methods, *carried)


def _carried(blob: bytes, partition: int) -> tuple[GraphNode, ...]:
    try:
        layout = parse(blob).layout
    except PayloadError as error:
        return (GraphNode("damaged", "damaged", attributes=(("why", str(error)),)),)
    inputs = [GraphNode(f"input {i}", f"input {i}") for i in range(layout.num_arguments)]
    arguments = [(n.id, 0) for n in inputs]
    nodes, made = inside_nodes("", "", "integer graph", lambda: container_view(blob), arguments, partition=partition)
    ends = [GraphNode(f"output {i}", f"output {i}", reads=own) for i, own in enumerate(made)]
    return (*inputs, *nodes, *ends)


class _Method:
    """Walks the calls of a method; the source of a value is the last call that wrote it."""

    def __init__(self, plan: Plan, named_data: Mapping[str, bytes], carried: Mapping[int, str]) -> None:
        self._plan, self._named, self._carried = plan, named_data, carried
        self._made: dict[int, tuple[Source, ...]] = {}
        self._placed: dict[tuple[object, ...], tuple[Source, ...]] = {}
        self._nodes: list[GraphNode] = []

    def nodes(self) -> list[GraphNode]:
        for number, index in enumerate(self._plan.inputs):
            self._add(GraphNode(f"input {number}", f"input {number}", outputs=(self._described(index),)), [index])
        for number, call in enumerate(self._plan.calls):
            if call.kind == "KernelCall":
                self._kernel(f"call {number}", call)
            elif call.kind == "DelegateCall":
                self._delegate(call)
        for number, index in enumerate(self._plan.outputs):
            self._nodes.append(GraphNode(f"output {number}", f"output {number}", reads=self._sources(index)))
        return self._nodes

    def _add(self, node: GraphNode, results: Sequence[int]) -> None:
        self._nodes.append(node)
        for output, index in enumerate(results):
            self._write(index, ((node.id, output),))

    def _write(self, index: int, source: tuple[Source, ...]) -> None:
        self._made[index] = self._placed[self._place(index)] = source

    def _sources(self, index: int) -> tuple[Source, ...]:
        """Return the sources of a value; numbers and constants have none."""
        value = self._plan.values[index]
        if value.items:
            return tuple(s for i in value.items if i >= 0 for s in self._sources(i))
        # A view is a separate value in the memory of another; no call produces it.
        shared = self._placed.get(self._place(index), ()) if value.planned else ()
        return self._made.get(index, shared)

    def _place(self, index: int) -> tuple[object, ...]:
        """Return memory, offset, dtype and size: these distinguish a view from scratch memory at the same offset."""
        value = self._plan.values[index]
        elements = (value.tensor.dtype, prod(value.tensor.shape)) if value.tensor is not None else ()
        return (value.planned, value.offset, *elements)

    def _kernel(self, node: str, call: PlanCall) -> None:
        values = self._plan.values
        # The last argument of an out variant is its result, which ExecuTorch lists twice.
        results = [i for i in call.arguments[-1:] if values[i].kind in ("Tensor", "TensorList")]
        written = [i for r in results for i in (values[r].items or (r,)) if i >= 0]
        reads = [i for i in dict.fromkeys(call.arguments) if i not in results]
        numbers = [str(values[i].number) for i in reads if values[i].number is not None]
        label = call.operator.rpartition("::")[2]
        self._add(
            GraphNode(
                node,
                label,
                reads=tuple(s for i in reads for s in self._sources(i)),
                attributes=(("operator", call.operator), *((("numbers", ", ".join(numbers)),) if numbers else ())),
                outputs=tuple(self._described(i) for i in written),
                place="core",
            ),
            written,
        )

    def _delegate(self, call: PlanCall) -> None:
        delegate = self._plan.delegates[call.delegate]
        where = f"partition {call.delegate} ({delegate.backend})"
        arguments = [(self._sources(i) or (None,))[0] for i in call.arguments]

        def look() -> Inside:
            backend = backend_with(delegate.backend)
            if backend is None:
                raise PayloadError("micronpu does not know this backend")
            return backend.view(delegate.payload, self._named)

        carried = self._carried.get(call.delegate, "")
        prefix = f"partition {call.delegate}: "
        nodes, made = inside_nodes(prefix, where, delegate.backend, look, arguments, carried, call.delegate)
        # Results come last, in order. Without a readable payload, results are the arguments that no call has written
        # yet.
        fresh = [i for i in call.arguments if i not in self._made]
        results = call.arguments[len(call.arguments) - len(made) :] if made else fresh
        if not made and len(nodes) == 1:
            nodes = [replace(nodes[0], reads=tuple(s for i in call.arguments for s in self._made.get(i, ())))]
        self._nodes += nodes
        for number, index in enumerate(results):
            self._write(index, made[number] if made else ((nodes[-1].id, number),))

    def _described(self, index: int) -> tuple[tuple[str, str], ...]:
        value: PlanValue = self._plan.values[index]
        if value.tensor is None:
            return ()
        place = f"memory {value.planned}, byte {value.offset:,}" if value.planned else "none"
        return (("shape", shape_text(value.tensor.dtype, value.tensor.shape)), ("planned memory", place))


def report_graph(report: DelegationReport) -> ProgramGraph:
    """Return the operators of the model as a report lists them, by module, with the outcome of each."""
    known = {v.node for v in report.verdicts}
    inputs = dict.fromkeys(r for v in report.verdicts for r in v.reads if r not in known)
    nodes = [GraphNode(name, name, attributes=(("kind", "input"),)) for name in inputs]
    for verdict in report.verdicts:
        nodes.append(
            GraphNode(
                verdict.node,
                verdict.operator.rpartition(".")[0] or verdict.operator,
                namespace=verdict.origin.module.replace(".", "/"),
                reads=tuple((name, 0) for name in verdict.reads),
                attributes=tuple(_attributes(verdict)),
                outputs=((("shape", shape_text("", verdict.shape)),),) if verdict.shape else (),
                place="NPU" if verdict.delegated else verdict.core or "core, float",
            )
        )
    return ProgramGraph(MODEL, tuple(nodes))


def _attributes(verdict: Verdict) -> list[tuple[str, str]]:
    found = [("operator", verdict.operator)]
    if verdict.origin.source:
        found.append(("source", verdict.origin.source))
    if verdict.partition is not None:
        found.append(("partition", str(verdict.partition)))
    if verdict.macs:
        found.append(("MACs", f"{verdict.macs:,}"))
    found += [("rewritten by", name) for name in verdict.rewrites]
    return found + [(f"why not: {reason.rule}", str(reason)) for reason in verdict.reasons]


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
