"""The compiled parts of methods, their lowering to the bytes of a program, and its verification and report."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from micronpu.base.callers import warn
from micronpu.base.errors import UnsupportedError
from micronpu.base.memory import release
from micronpu.base.quiet import quiet
from micronpu.base.texts import file_name
from micronpu.compiler.basis import tool_versions
from micronpu.compiler.clock import Clock
from micronpu.compiler.host import Compiled, HostPart, host_part, with_parts
from micronpu.compiler.program import ONLY, CompiledProgram, FinishedMethod
from micronpu.compiler.quantized import Quantized
from micronpu.compiler.thresholds import ALIGNMENT
from micronpu.frontend.checks import hint_for
from micronpu.frontend.graphs import GraphModule, Node, map_arg
from micronpu.frontend.integers import IntegerIO
from micronpu.frontend.positions import counts_of, ranges_of
from micronpu.frontend.program import ProgramView, named, overload_name, value_of
from micronpu.frontend.tensors import held, hold, states_of
from micronpu.ir.graph import Graph, Tensor
from micronpu.partition.device import CompiledPartition, Device, constant_bytes
from micronpu.partition.memory import Lifetime, lower_bound, place
from micronpu.partition.write import FOR_COMPLEX, MethodInput, Written, without_kernel, written
from micronpu.program.digest import stamp
from micronpu.program.edit import strip
from micronpu.program.io import packed
from micronpu.program.plan import Plan, PlanCall, PlanValue, read_plan
from micronpu.report.budgets import check_budgets, undecided
from micronpu.report.delegation import DelegationReport
from micronpu.report.diagnosis import Frontier
from micronpu.report.memory import PROGRAM, REST, Arena, Item, Life, MemoryReport, PartitionMemory
from micronpu.report.operations import IOTensor, StateRow, renamed
from micronpu.report.warnings import NOT_VERIFIED, WARNING, AccuracyWarning, ReportWarning, check_strict
from micronpu.targets.board import Board, board_of, pools_of
from micronpu.verify.guard import first_causes
from micronpu.verify.program import Expected, verified
from micronpu.verify.static_checks import of_graph, of_placement
from micronpu.verify.verification import Verification


@dataclass(frozen=True)
class Staged:
    """A method whose NPU parts are compiled, before the file is written."""

    quantized: Quantized
    host: HostPart  # its core part, with its states as buffers
    name: str = ""  # of the method; "" if the program has only one
    expected: Expected | None = None  # expected results; None if it is not run

    @classmethod
    def of(
        cls, quantized: Quantized, device: Device, clock: Clock, checks: Verification, compiled: Compiled, name: str
    ) -> Staged:
        """Run the quantized module if the program is to be compared with it, and compile the NPU's parts.

        Args:
            compiled: by a search; not compiled again, unless inputs or outputs have become integers since.
        """
        module, host = quantized.module, None
        if quantized.meaning is None:
            module, host = compiled.get(module, (module, None))
            quantized = replace(quantized, module=module)
        expected: Expected | None = None
        if checks.run:
            with clock.early("verify"):
                expected = Expected.of(
                    quantized.module,
                    quantized.trial,
                    quantized.integer_io,
                    quantized.results,
                    proposal=quantized.proposal,
                )
        host = host or host_part(module, device, clock, quantized.meaning, name)
        hold(host.module, states_of(quantized.module))
        return cls(quantized, host, name, expected)

    @cached_property
    def whole(self) -> GraphModule:
        """The quantized module with its states as buffers."""
        return held(self.quantized.module)


def lowered(methods: Sequence[Staged], allow_missing_kernels: bool) -> tuple[Written, tuple[str, ...]]:
    """Lower the core parts around the NPU's to a program, and return notes of the report about its kernels."""
    named: dict[str, bytes] = {}
    for method in methods:
        named |= named_data_of(method)
    parts = {m.name or "forward": MethodInput(m.host.module, m.quantized.examples, m.quantized.names) for m in methods}
    made = written(parts, named)
    notes = (n for callers in made.callers.values() for n in _check_kernels(callers, allow_missing_kernels))
    return made, tuple(dict.fromkeys(notes))


def named_data_of(method: Staged) -> dict[str, bytes]:
    """Return the facts about inputs, outputs and states that the program stores as named data."""
    own, io = method.quantized, method.quantized.meaning
    known = None if io is None else (io.inputs, io.outputs)
    return packed(method.name, known, ranges_of(own.module), counts_of(own.module), own.states, own.file)


def _check_kernels(callers: Mapping[str, Node], allow: bool) -> tuple[str, ...]:
    """Return notes about operators without a kernel; raise `UnsupportedError` if the user does not allow them."""
    missing = without_kernel(callers)
    if missing and not allow:
        name = missing[0]
        caller = "view_as_complex" if name.endswith(FOR_COMPLEX) else overload_name(callers[name])
        raise UnsupportedError(
            f"ExecuTorch has no portable kernel for {name}, which {named(callers[name])} calls on the host, so that "
            f"the program cannot run.{''.join(f' Nor has it {n}.' for n in missing[1:])}",
            hint=f"{hint_for(caller, 'other operators for it')}; or allow_missing_kernels=True "
            "where you register a kernel, here and on the board",
        )
    return tuple(
        f"ExecuTorch has no portable kernel for {name}, which the host part calls. Register one, here and on the "
        "device, or express the operator by others."
        for name in missing
    )


# ---------------------------------------------------------------- the program


def program_of(staged: Sequence[Staged], target: str, checks: Verification, clock: Clock) -> CompiledProgram:
    """Return the program of all methods, verified."""
    with clock.step("lower"), quiet():
        made, notes = lowered(staged, checks.allow_missing_kernels)
        buffer = stamp(made.buffer)
        made = made._replace(buffer=b"")
        hosts = [with_parts(s.host, lambda part: part.within(buffer)) for s in staged]
    consists = [part.program_bytes() for host in hosts for part in host.partitions]
    consists += [constant_bytes(graph) for host in hosts for graph in host.core_graphs]
    stripped, methods = strip(buffer), {}
    for own, host in zip(staged, hosts, strict=True):
        plan, _ = read_plan(stripped, method=own.name)
        board = board_of(plan, target)
        memory = _memory_of(plan, len(stripped), board, consists, host.partitions)
        host = replace(host, report=_with_memories(host.report, board))
        methods[own.name] = _untried(own, host, buffer, notes, memory, made.handles[own.name or ONLY])
    del stripped
    release()
    program: CompiledProgram = CompiledProgram(buffer, methods, clock.seconds, dict(made.data_files), _target=target)
    for own, host in zip(staged, hosts, strict=True):
        report = _judged(own, host, program.methods[own.name or ONLY], checks, clock)
        program = program.with_report(report, own.name)
    program.reset_states()
    return program


def _untried(
    own: Staged,
    host: HostPart,
    buffer: bytes,
    notes: Sequence[str],
    memory: MemoryReport,
    kernels: Mapping[int, tuple[int, ...]],
) -> FinishedMethod:
    """Return a method, with the part of its report that needs no run."""
    quantized, integer_io = own.quantized, own.quantized.meaning
    inputs, outputs = _io_tensors(own.whole, integer_io)
    frontier = _with_time(own, host.report)
    searched = () if frontier is None else frontier.notes
    known = () if integer_io is None else (*integer_io.inputs, *(b for b in integer_io.outputs if b is not None))
    io_notes = [f"The program takes and gives integers q: {'; '.join(map(str, known))}."] if known else []
    price, rest = host.report.resident, sum(i.bytes for r in memory.regions for i in r.items if i.what == REST)
    hashes = {f"partition {i}": hashlib.sha256(part.data).hexdigest() for i, part in enumerate(host.partitions)}
    report = replace(
        host.report,
        notes=(*host.report.notes, *notes, *io_notes, *searched, *quantized.notes),
        program_bytes=len(buffer),
        precision="" if frontier is None else frontier.choice,
        inputs=inputs,
        outputs=outputs,
        hashes={"program": hashlib.sha256(buffer).hexdigest()} | hashes,
        memory=memory,
        resident=None if price is None else replace(price, sram_bytes=price.sram_bytes + rest),
        states=tuple(
            StateRow(s.name, s.dtype, tuple(s.initial.shape), s.bytes, s.scale, s.zero_point) for s in quantized.states
        ),
        sparsity=quantized.sparsity,
    )
    return FinishedMethod(
        own.name,
        report,
        host.partitions,
        own.whole,
        integer_io,
        quantized.rows,
        quantized.states,
        quantized.examples,
        kernels,
    )


def _with_memories(report: DelegationReport, board: Board) -> DelegationReport:
    """Return the report with the board's names of memories, instead of those of estimates."""
    operations = (o if o.cost is None else replace(o, cost=o.cost.renamed(board.memory)) for o in report.operations)
    return replace(report, operations=tuple(operations), bus=renamed(report.bus, board.memory))


def _with_time(own: Staged, report: DelegationReport) -> Frontier | None:
    """Return the result of the search for a method's precision, with the time of the only method as in its report."""
    frontier, time = own.quantized.frontier, report.headline.milliseconds
    return frontier if frontier is None or own.name or time is None else frontier.with_time(time)


def _unproved(program: CompiledProgram) -> tuple[ReportWarning, ...]:
    """A warning for each payload that could not be verified against its graph."""
    return tuple(
        ReportWarning(
            WARNING,
            NOT_VERIFIED,
            f"The command stream of partition `{part.name}` could not be compared with its graph: {part.unproved}.",
            "`micronpu doctor` if a tool is missing, else a run on the board",
        )
        for part in program.partitions
        if part.unproved
    )


def _judged(
    own: Staged, host: HostPart, program: CompiledProgram, checks: Verification, clock: Clock
) -> DelegationReport:
    """Run the program, and return its report with the results.  Warns, and refuses a program that misses a budget."""
    report, quantized = program.report, own.quantized
    if own.expected is not None:
        with clock.step("verify"):
            found = verified(program, own.expected, host.reads)
        report = replace(report, agreement=found.agreement, accuracy=found.accuracy, warnings=found.warnings)
    exact, known = quantized.trial.exact_rows, report.accuracy
    lost = of_graph(own.whole, exact, proposal=quantized.proposal, accuracy=known)
    causes = first_causes(quantized.module, quantized.trial, report.warnings, (*quantized.warnings, *lost))
    unproved = () if any(w.rule == NOT_VERIFIED for w in report.warnings) else _unproved(program)
    frontier = _with_time(own, report)
    searched = () if frontier is None else frontier.warnings
    front = causes[:1] if causes[:1] and causes[0].rule == "int8-power" else ()
    memories = () if report.memory is None else report.memory.too_small
    of_target = program.report.warnings
    causes = (*front, *of_placement(report), *unproved, *memories, *searched, *of_target, *causes[len(front) :])
    report = replace(report, warnings=tuple(dict.fromkeys(causes)))
    report = replace(report, tools=tool_versions())  # after the run, which imports packages
    if checks.budgets is not None:
        results = checks.budgets.results(report)
        check_budgets(results, report, strict=checks.strict)
        report = replace(report, budgets=results, warnings=(*report.warnings, *undecided(results)))
    if checks.strict:
        check_strict(report.warnings)
    for warning in report.warnings:
        if warning.is_severe:
            text = f"Method `{own.name}`: {warning}" if own.name else str(warning)
            warn(text, AccuracyWarning)
    return report


def _io_tensors(module: GraphModule, integer_io: IntegerIO | None) -> tuple[tuple[IOTensor, ...], tuple[IOTensor, ...]]:
    """Return inputs and outputs of a quantized module."""
    view = ProgramView(module)
    results: list[Node] = []
    map_arg(module.graph.output_node().args, results.append)
    known: tuple[Sequence[object], Sequence[object]] = (
        (integer_io.inputs, integer_io.outputs) if integer_io is not None else ((), ())
    )

    def tensors(nodes: Sequence[Node], meanings: Sequence[object], prefix: str) -> tuple[IOTensor, ...]:
        return tuple(
            _tensor(view, node, f"{prefix}{i}" if prefix else node.name, meanings[i] if i < len(meanings) else None)
            for i, node in enumerate(nodes)
        )

    return tensors(list(view.inputs), known[0], ""), tensors(results, known[1], "output_")


def _tensor(view: ProgramView, node: Node, name: str, meaning: Any) -> IOTensor:
    value = value_of(node)
    if not isinstance(value, torch.Tensor):
        return IOTensor(name, type(value).__name__, ())
    scale, zero_point = (meaning.scale, meaning.zero_point) if meaning is not None else _step(view, node)
    dtype = meaning.dtype if meaning is not None else str(value.dtype).removeprefix("torch.")
    return IOTensor(name, dtype, tuple(map(int, value.shape)), scale, zero_point)


def _step(view: ProgramView, node: Node) -> tuple[float | None, int | None]:
    edge = view.edge(node) or view.edge_after(node)
    return (None, None) if edge is None else (edge.qparams.scale[0], edge.zero_point)


# ---------------------------------------------------------------- use of the chip's memories

# The `.pte` contains the runtime's plan: the place of each tensor, and the calls that read or write it.  So the figures
# are those of the device, for any writer of the plan.

_HIDDEN = (
    "The vendor's converter decides how much SRAM the NPU uses; the tensors inside of a partition take at least the "
    "size of its arena."
)


def _memory_of(
    plan: Plan, size: int, board: Board, consists_of: Sequence[Mapping[str, int]], parts: Sequence[CompiledPartition]
) -> MemoryReport:
    """Return the memory use of a program."""
    pools = pools_of(plan)
    sums = {what: sum(own.get(what, 0) for own in consists_of) for what in PROGRAM}
    items = [Item(what, size) for what, size in sums.items() if size]
    items.append(Item(REST, max(size - sum(item.bytes for item in items), 0)))
    arenas = [_arena_of(plan, i, board.sram) for i, size in enumerate(plan.memories, 1) if size]
    known = [part.npu_sram for part in parts if part.npu_sram is not None]
    inside = [_graph_arena(f"inside partition {i}", p.graph) for i, p in enumerate(parts) if p.npu_sram is None]
    return MemoryReport(
        regions=board.regions(items, pools),
        arenas=(*arenas, *inside),
        planned=pools.planned,
        method_pool=pools.method,
        temporary_pool=pools.temporary,
        scratch=pools.scratch,
        npu_sram=max(known, default=None),
        inside=tuple(
            found
            for i, part in enumerate(parts)
            if part.npu_sram is not None and (found := _partition_memory(f"inside partition {i}", part)) is not None
        ),
        open=(*pools.open, *([_HIDDEN] if inside else [])),
    )


def _arena_of(plan: Plan, number: int, region: str) -> Arena:
    """Return the lifetimes in a planned memory."""
    # The calls of the plan are the steps. Tensors at one place with adjacent lifetimes are merged: they are views of
    # the same bytes.
    calls, last_step = plan.calls, max(len(plan.calls) - 1, 0)
    names: dict[int, str] = {}
    used: dict[int, list[int]] = {}
    for i, index in enumerate(plan.inputs):
        names[index] = f"input {i}"
        used[index] = [0]
    for i, index in enumerate(i for i, value in enumerate(plan.values) if value.initial is not None):
        names[index] = f"state {i}"
        used[index] = [0, last_step]
    steps = [_call_name(call) for call in calls]
    for step, call in enumerate(calls):
        for index in call.arguments:
            if plan.values[index].planned == number:
                names.setdefault(index, f"{steps[step]}, step {step}")
                used.setdefault(index, []).append(step)
    for i, index in enumerate(plan.outputs):
        names.setdefault(index, f"output {i}")
        used.setdefault(index, []).append(last_step)
    found: list[Life] = []
    latest: dict[int, int] = {}  # by offset, number of the one that began last: those before it have ended
    for index, at in sorted(used.items(), key=lambda entry: (min(entry[1]), entry[0])):
        value = plan.values[index]
        if value.planned != number or value.tensor is None:
            continue
        own = Life(names[index], _bytes(value), value.offset, min(at), max(at))
        same = found[latest[own.offset]] if own.offset in latest else None
        if same is None or own.first > same.last:
            latest[own.offset] = len(found)
            found.append(own)
        else:
            joined = Life(same.name, max(same.bytes, own.bytes), same.offset, same.first, max(same.last, own.last))
            found[latest[own.offset]] = joined
    bound = lower_bound([Lifetime(t.bytes, t.first, t.last) for t in found])
    return Arena(f"planned memory {number}", region, plan.memories[number - 1], bound, tuple(steps), tuple(found))


def _partition_memory(name: str, part: CompiledPartition) -> PartitionMemory | None:
    """Return a partition's memory use over time, from its compiler's estimates; None without estimates."""
    counted = [(i, cost.memory_bytes) for i, cost in sorted(part.costs.items()) if cost.memory_bytes]
    if not counted:
        return None
    names = []
    for i, _ in counted:
        node = part.graph.nodes[i]
        place = file_name(node.origin.source)
        names.append(f"{node.op.name} ({place})" if place else node.op.name)
    most = max(counted, key=lambda entry: entry[1])[0]
    made_by = zip(*_lives(part.graph, _steps(part.graph)), strict=True)
    alive = [Item(label, life.size) for label, life in made_by if life.first <= most <= life.last]
    alive += [Item("prefetched weights", part.prefetched)] if part.prefetched else []
    alive.sort(key=lambda item: -item.bytes)
    return PartitionMemory(name, tuple(names), tuple(size + part.prefetched for _, size in counted), tuple(alive))


def _call_name(call: PlanCall) -> str:
    if call.kind == "DelegateCall":
        return f"partition {call.delegate}"
    return call.operator.rpartition("::")[2].removesuffix(".out") or call.kind


def _bytes(value: PlanValue) -> int:
    assert value.tensor is not None
    return -(-value.tensor.bytes // ALIGNMENT) * ALIGNMENT


def _graph_arena(name: str, graph: Graph) -> Arena:
    """Return the arena of a partition's tensors, placed by their lifetimes like the runtime's."""
    steps = _steps(graph)
    labels, lives = _lives(graph, steps)
    placement = place(lives)
    tensors = tuple(
        Life(label, life.size, offset, life.first, life.last)
        for label, life, offset in zip(labels, lives, placement.offsets, strict=True)
    )
    return Arena(name, "", placement.size, lower_bound(lives), steps, tensors)


def _steps(graph: Graph) -> tuple[str, ...]:
    return tuple(node.origin.nodes[-1] if node.origin.nodes else node.op.name for node in graph.nodes)


def _lives(graph: Graph, steps: Sequence[str]) -> tuple[list[str], list[Lifetime]]:
    """Return the producer of each tensor of a graph, by the names of its nodes, and its lifetime."""
    last_step = max(len(graph.nodes) - 1, 0)
    labels = {t: f"input {i}" for i, t in enumerate(graph.inputs)}
    used: dict[Tensor, list[int]] = {t: [0] for t in graph.inputs}
    for number, (step, node) in enumerate(zip(steps, graph.nodes, strict=True)):
        for tensor in (*node.inputs, *node.outputs):
            if not tensor.is_constant:
                labels.setdefault(tensor, step)
                used.setdefault(tensor, []).append(number)
    for tensor in graph.outputs:
        if tensor in used:
            used[tensor].append(last_step)
    lives = [Lifetime(-(-t.type.bytes // ALIGNMENT) * ALIGNMENT, min(at), max(at)) for t, at in used.items()]
    return [labels[t] for t in used], lives
