"""`micronpu.compile`: checks the input, then export, quantize, partition, compile, outline, lower."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.fx import GraphModule

from micronpu.base.arguments import QUANTIZATION_NOW, moved
from micronpu.base.memory import release
from micronpu.base.quiet import quiet
from micronpu.compiler.at_sight import of_graph
from micronpu.compiler.clock import Clock, Listener
from micronpu.compiler.etrecord import number_nodes
from micronpu.compiler.facts import border_tensors, digests, missing_figures, tool_versions
from micronpu.compiler.memory import memory_of
from micronpu.compiler.program import CompiledProgram
from micronpu.compiler.quantized import quantized_module
from micronpu.compiler.verification import Verification
from micronpu.compiler.verify import Expected, verified
from micronpu.frontend.checks import check_listener
from micronpu.frontend.export import as_inputs
from micronpu.frontend.integers import IntegerBorders
from micronpu.frontend.program import ProgramView
from micronpu.frontend.separate import separate_clamps
from micronpu.frontend.states import State, held, hold, states_of
from micronpu.frontend.training import Train
from micronpu.ir.graph import Graph
from micronpu.partition.device import CompiledPartition, Device, NamedData, constant_bytes
from micronpu.partition.direct import program_of
from micronpu.partition.kernels import kernel_handles
from micronpu.partition.loops import scan
from micronpu.partition.moves import move_integers, undo_decisions
from micronpu.partition.notes import coarse_notes, pattern_notes
from micronpu.partition.outline import DelegateCall, border, compute_contiguously, outline
from micronpu.partition.partition import Partitioning
from micronpu.program.border import BORDERS_KEY, pack_borders
from micronpu.program.digest import stamp
from micronpu.program.plan import read_plan
from micronpu.program.states import STATES_KEY, pack_states
from micronpu.quantize.loops import loops_of
from micronpu.quantize.quantization import HowToQuantize, Quantization
from micronpu.report.budgets import check_budgets
from micronpu.report.delegation import DelegationReport, Operation, StateRow
from micronpu.report.texts import plural
from micronpu.report.warnings import AccuracyWarning, check_strict
from micronpu.targets.defaults import DEFAULT_TARGET
from micronpu.targets.options import Options
from micronpu.targets.registry import device_for
from micronpu.transforms.sparsity.options import SparsityOptions
from micronpu.transforms.wanted import Transforms
from micronpu.upstream.executorch import add_named_data, data_files

if TYPE_CHECKING:
    from executorch.exir import EdgeProgramManager


@moved(
    **QUANTIZATION_NOW,
    allow_missing_kernels="verify=Verification(allow_missing_kernels=True)",
    strict="verify=Verification(strict=True)",
    held_out="verify=Verification(held_out=8)",
    budgets="verify=budgets, or Verification(budgets=budgets, ...)",
    sparsity='transforms="2:4"',
    compress="transforms=Transforms(compress=0.01)",
    etrecord="program.save_etrecord(path)",
)
def compile_model(
    model: nn.Module | ExportedProgram,
    example_inputs: Sequence[Any] | torch.Tensor,
    target: str = DEFAULT_TARGET,
    *,
    calibration: Any = None,
    train: Train | None = None,
    quantization: HowToQuantize = None,
    options: Options | None = None,
    verify: bool | Verification = True,
    transforms: Transforms | str | SparsityOptions | None = None,
    listener: Listener | None = None,
) -> CompiledProgram:
    """Compiles a PyTorch model for a chip.

    Args:
        model: a float module in evaluation mode, an exported program of one, or a program or module that is quantized
            already (the result of `convert_pt2e`).
        example_inputs: inputs that fix shapes and dtypes; one tensor may stand for a tuple of one.
        target: see ``micronpu targets``.
        calibration: typical inputs, some dozens: tensors, tuples of tensors or NumPy arrays.  Needed for a float model.
            For a model that changes its buffers a list of sequences, ``[[x0, x1, ...], ...]``: its states begin anew
            with each; see docs/streaming.md.
        train: trains the module that it is given, in place: quantization-aware training of a float model, which takes
            the place of calibration.
        quantization: a `Quantization`; or in short "int16" or "auto" for the activations, the path of a TOML file or a
            dictionary of its form, such as ``{"equalize": True}``, or a quantizer of your own.
        options: further options of the NPU's family: `NeutronCompileOptions` or `EthosUCompileSpec`.
        verify: a `Verification`; or in short False not to run the program, or `Budgets`.
        transforms: `Transforms` of the model before; or in short "2:4" for sparse weights.
        listener: hears about progress; in a notebook a line under the cell says it unless given.

    Returns:
        The program with ``report``, ``save`` and ``run``.

    Raises:
        MicroNpuError: something in the input does not fit; the message says what, where, why and what to try.
        BudgetError: the program misses a budget, or with ``strict`` a warning is about it.
    """
    checks, wanted = Verification.of(verify), Transforms.of(transforms)
    check_listener(listener)
    clock = Clock(listener)
    device = device_for(target, options)
    if not checks.run:
        device = device.unverified()
    how = Quantization.of(quantization)
    chosen = how.quantizer_for(device.quantizer, train is not None, chooses=True)
    quantized = quantized_module(
        model,
        example_inputs,
        chosen,
        calibration=calibration,
        train=train,
        clock=clock,
        held_out=checks.held_out,
        sparsity=wanted.on(device),
        float_too=checks.run,
        auto=how.is_auto,
    )
    borders, states = quantized.borders, quantized.states
    expected: Expected | None = None
    if checks.run:
        with clock.early("verify"):
            expected = Expected.of(quantized.module, quantized.trial, borders)
    host = host_part(quantized.module, device, clock, borders)
    whole = held(quantized.module)
    hold(host.module, states_of(quantized.module))
    with clock.step("lower"), quiet():
        lowered = _lowered(host, quantized.examples, borders, states, checks.allow_missing_kernels)
        buffer = stamp(lowered.buffer)
        lowered = lowered._replace(buffer=b"")
        host = _within(host, buffer)
    inputs, outputs = border_tensors(whole, borders)
    memory = memory_of(
        buffer,
        target,
        [part.program_bytes() for part in host.partitions] + [constant_bytes(graph) for graph in host.core_graphs],
        host.partitions,
    )
    release()
    report = replace(
        host.report,
        notes=(*host.report.notes, *lowered.notes, *_border_notes(borders), *quantized.notes),
        program_bytes=len(buffer),
        inputs=inputs,
        outputs=outputs,
        hashes=digests(buffer, host.partitions),
        memory=memory,
        states=tuple(map(_reported, states)),
        sparsity=quantized.sparsity,
    )
    program_made = CompiledProgram(
        buffer,
        report,
        host.partitions,
        whole,
        clock.seconds,
        dict(lowered.data_files),
        borders,
        quantized.rows,
        states,
        quantized.examples,
    )
    if host.core_graphs:
        operators = [call.operator for call in read_plan(buffer)[0].calls]
        program_made._kernels = kernel_handles(host.module, operators)
    if expected is not None:
        with clock.step("verify"):
            found = verified(program_made, expected, host.reads, may_choose=how.may_choose and train is None)
        report = replace(report, agreement=found.agreement, accuracy=found.accuracy, warnings=found.warnings)
    seen = (*quantized.warnings, *of_graph(whole, quantized.trial.exact, may_choose=how.may_choose and train is None))
    report = replace(report, warnings=(*report.warnings, *seen))
    program_made.report = replace(report, tools=tool_versions())  # behind the run: it imports what reads packages
    if checks.budgets is not None:
        results = checks.budgets.results(program_made.report)
        check_budgets(results)
        program_made.report = replace(program_made.report, budgets=results)
    if checks.strict:
        check_strict(program_made.report.warnings)
    for warning in program_made.report.warnings:
        if warning.is_severe:
            warnings.warn(str(warning), AccuracyWarning, stacklevel=2)
    return program_made


@dataclass(frozen=True)
class HostPart:
    """A quantized program in which the NPU's parts are calls of finished payloads, not lowered yet.

    Attributes:
        module: calls ``delegate_0`` and so on for the NPU, each a `DelegateCall`, and ``core_0`` and so on for what a
            core computes in int8.
        report: what runs where and why.
        partitions: what the NPU computes, in the order of the calls.
        reads: for each of them, the nodes of the quantized module whose integers it takes.
        core_graphs: what the core computes in int8, in the order of the calls.
        finish: what the kernels of the core want done after ExecuTorch's lowering; None without them.
    """

    module: GraphModule
    report: DelegationReport
    partitions: tuple[CompiledPartition, ...]
    reads: tuple[tuple[str, ...], ...] = ()
    core_graphs: tuple[Graph, ...] = ()
    finish: Callable[[EdgeProgramManager], None] | None = None


def _within(host: HostPart, program: bytes) -> HostPart:
    """The host part with payloads that are parts of the finished program."""
    for call in host.module.modules():
        if isinstance(call, DelegateCall):
            call.part = call.part.within(program)
    return replace(host, partitions=tuple(part.within(program) for part in host.partitions))


def host_part(
    quantized: GraphModule,
    device: Device,
    clock: Clock | None = None,
    borders: IntegerBorders | None = None,
) -> HostPart:
    """Partitions a quantized module and compiles the partitions.

    Args:
        borders: what the program's integers mean, which travels with its first partition.
    """
    clock = clock or Clock(None)
    separate_clamps(quantized, device.excludes)
    number_nodes(quantized)
    view = ProgramView(quantized)
    with clock.step("partition"):
        decisions = device.decisions(view)
        partitioning = decisions.partitioning()
    with clock.step("compile") as progress, quiet():
        partitioning = device.settle(decisions, partitioning, progress)
        compiled = [device.compile(partition) for partition in partitioning.partitions]
        if borders is not None and compiled:
            named = {**compiled[0].named_data, BORDERS_KEY: NamedData(pack_borders(borders.inputs, borders.outputs))}
            compiled = [replace(compiled[0], named_data=named), *compiled[1:]]
        specs = device.specs()
        calls: list[tuple[str, nn.Module]] = [
            (f"delegate_{i}", DelegateCall(device.backend, part, specs, *border(partition, view)))
            for i, (part, partition) in enumerate(zip(compiled, partitioning.partitions, strict=True))
        ]
        core = device.beside if partitioning.core else None
        graphs = tuple(partition.graph for partition in partitioning.core)
        if core is not None:
            calls += [(f"core_{i}", core.module(graph)) for i, graph in enumerate(graphs)]
        module = outline(quantized, (*partitioning.partitions, *partitioning.core), calls)
        move_integers(module)
        undo_decisions(module)
        compute_contiguously(module)
        loops = _scans(module, device)
        if core is not None:
            core.adapt(module)
    report = _report(device, partitioning, compiled, graphs, loops)
    reads = tuple(tuple(n.name for n in partition.inputs) for partition in partitioning.partitions)
    if loops.steps:
        report = _with_loops(report, len(compiled), len(graphs), loops)
        compiled = [*compiled, *(part for step in loops.steps for part in step.partitions)]
        reads += tuple(("",) for step in loops.steps for _ in step.partitions)
        graphs += tuple(graph for step in loops.steps for graph in step.core_graphs)
    finish = device.beside.finish if graphs and device.beside is not None else None
    return HostPart(module, report, tuple(compiled), reads, graphs, finish)


def _report(
    device: Device,
    partitioning: Partitioning,
    compiled: Sequence[CompiledPartition],
    graphs: Sequence[Graph],
    loops: _Loops,
) -> DelegationReport:
    """The verdicts with what is known once partitions are compiled: operations, costs, time, notes.

    Args:
        graphs: what the core computes in int8.
    """
    beside = device.beside
    latency = device.latency([*compiled, *loops.every])
    if beside is not None:
        latency = (*latency, *beside.latency([*graphs, *loops.every_core]))
    core_costs = [beside.costs(graph) for graph in graphs] if beside is not None else []
    return replace(
        partitioning.report,
        notes=(
            *partitioning.report.notes,
            *device.notes(compiled),
            *coarse_notes([part.graph for part in compiled]),
            *pattern_notes(device, partitioning.partitions, compiled),
        ),
        missing=missing_figures(device, compiled, graphs, partitioning.report),
        latency=latency,
        core_operations=tuple(
            Operation.of(i, node, costs.get(index))
            for i, (graph, costs) in enumerate(zip(graphs, core_costs, strict=True))
            for index, node in enumerate(graph.nodes)
        ),
        operations=tuple(
            Operation.of(i, node, part.costs.get(index), index in part.sparse)
            for i, part in enumerate(compiled)
            for index, node in enumerate(part.graph.nodes)
        ),
    )


class _Loops(NamedTuple):
    """The compiled steps of a program's loops, and how often each is called."""

    steps: tuple[HostPart, ...] = ()
    counts: tuple[int, ...] = ()

    @property
    def every(self) -> list[CompiledPartition]:
        """The partitions of the steps, as often as they are called."""
        return [part for step, count in zip(self.steps, self.counts, strict=True) for part in step.partitions * count]

    @property
    def every_core(self) -> list[Graph]:
        """What the core computes in int8 in the steps, as often as they are called."""
        return [
            graph for step, count in zip(self.steps, self.counts, strict=True) for graph in step.core_graphs * count
        ]


def _scans(module: GraphModule, device: Device) -> _Loops:
    """Compiles the step of each loop of a host part and writes the loop as ExecuTorch's, in place."""
    steps, counts = [], []
    for node, loop in list(loops_of(module)):
        value = node.args[0].meta["val"]  # type: ignore[union-attr]
        made = host_part(loop.body, device)
        scan(module, node, made.module, loop.body)
        steps.append(made)
        counts.append(int(value.shape[0]))
    return _Loops(tuple(steps), tuple(counts))


def _with_loops(report: DelegationReport, first: int, first_core: int, loops: _Loops) -> DelegationReport:
    """The report with what the steps of loops compute.

    Args:
        first: number of the first partition of a step.
        first_core: number of its first part on the core.
    """
    verdicts, operations = list(report.verdicts), list(report.operations)
    notes, on_core = list(report.notes), list(report.core_operations)
    for step, count in zip(loops.steps, loops.counts, strict=True):
        for v in step.report.verdicts:
            number = None if v.partition is None else v.partition + first
            verdicts.append(replace(v, partition=number, macs=v.macs * count))
        operations += [replace(o, partition=o.partition + first) for o in step.report.operations]
        on_core += [replace(o, partition=o.partition + first_core) for o in step.report.core_operations]
        parts = [(step.report.partitions, "partition"), (len(step.core_graphs), "part on the core")]
        notes.append(
            f"A recurrent layer of {count:,} steps is one step of {step.report.macs:,} MACs, whose "
            f"{' and '.join(plural(n, what) for n, what in parts if n)} the runtime calls {count:,} times."
        )
        notes += [note for note in step.report.notes if note not in notes]
        first += len(step.partitions)
        first_core += len(step.core_graphs)
    return replace(
        report,
        verdicts=tuple(verdicts),
        operations=tuple(operations),
        core_operations=tuple(on_core),
        notes=tuple(notes),
    )


def _border_notes(borders: IntegerBorders | None) -> tuple[str, ...]:
    """What the integers at the program's border mean."""
    if borders is None:
        return ()
    known = [*borders.inputs, *(b for b in borders.outputs if b is not None)]
    return (f"The program takes and gives integers q: {'; '.join(map(str, known))}.",)


class _Lowered(NamedTuple):
    """The program's bytes, what the report says about its kernels, and data files by name."""

    buffer: bytes
    notes: tuple[str, ...] = ()
    data_files: Mapping[str, bytes] = MappingProxyType({})


def _lowered(
    host: HostPart,
    examples: tuple[torch.Tensor, ...],
    borders: IntegerBorders | None,
    states: Sequence[State],
    allow_missing_kernels: bool,
) -> _Lowered:
    """The host part round the NPU's as a program; through ExecuTorch's compiler where it has anything to do."""
    named = {BORDERS_KEY: pack_borders(borders.inputs, borders.outputs)} if borders is not None else {}
    direct = program_of(host.module, examples, named)
    if direct is not None:
        return _Lowered(direct)
    from micronpu.compiler.kernels import check_kernels, out_variants
    from micronpu.partition.lower import lower

    with out_variants(host.module):
        program = lower(host.module, examples, _finish(host, borders, states))
        notes = check_kernels(program, host.module, allow_missing_kernels)
        return _Lowered(bytes(program.buffer), notes, data_files(program))


def _finish(
    host: HostPart, borders: IntegerBorders | None, states: Sequence[State]
) -> Callable[[EdgeProgramManager], None]:
    """What is done to the host part between ExecuTorch's lowering to edge operators and the end."""

    def finish(edge: EdgeProgramManager) -> None:
        if host.finish is not None:
            host.finish(edge)
        _record(edge, borders)
        if states:
            add_named_data(edge, STATES_KEY, pack_states(states))

    return finish


def _record(edge: EdgeProgramManager, borders: IntegerBorders | None) -> None:
    """Writes into the program what its integers mean, so that `micronpu deploy` finds it in the file alone.

    Once, also where a partition brings it along.
    """
    if borders is not None:
        add_named_data(edge, BORDERS_KEY, pack_borders(borders.inputs, borders.outputs))


def _reported(state: State) -> StateRow:
    return StateRow(state.name, state.dtype, tuple(state.initial.shape), state.bytes, state.scale, state.zero_point)


@moved(**QUANTIZATION_NOW)
def check_model(
    model: nn.Module | ExportedProgram,
    example_inputs: Sequence[Any] | torch.Tensor,
    target: str = DEFAULT_TARGET,
    *,
    calibration: Any = None,
    quantization: HowToQuantize = None,
    options: Options | None = None,
) -> Partitioning:
    """What would be delegated, without compiling.

    A float model without calibration data is quantized with its example inputs alone: the decisions depend on shapes
    and operators, not on ranges.  The arguments are those of `compile_model`.
    """
    clock = Clock(None)
    examples = as_inputs(example_inputs)
    device, how = device_for(target, options), Quantization.of(quantization)
    quantized = quantized_module(
        model,
        examples,
        how.quantizer_for(device.quantizer, chooses=True),
        calibration=[examples] if calibration is None else calibration,
        clock=clock,
        held_out=0,
        float_too=True,
        auto=how.is_auto,
    )
    separate_clamps(quantized.module, device.excludes)
    made = device.partition(ProgramView(quantized.module))
    known = quantized.warnings if calibration is not None else ()
    seen = (*known, *of_graph(quantized.module, quantized.trial.exact, may_choose=how.may_choose))
    if made.report.in_float:
        from micronpu.compiler.foresight import of_host

        seen = (*of_host(quantized.module, made.report.in_float), *seen)
    return replace(made, report=replace(made.report, warnings=seen))
