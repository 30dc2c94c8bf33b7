"""Assembly of the returned program from a method's parts and the file's bytes, with its verification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from micronpu.base.callers import warn
from micronpu.base.memory import release
from micronpu.base.quiet import quiet
from micronpu.compiler.clock import Clock
from micronpu.compiler.facts import digests, io_tensors, tool_versions
from micronpu.compiler.host import HostPart, within
from micronpu.compiler.lowering import Staged, lowered
from micronpu.compiler.memory import memory_of
from micronpu.compiler.program import ONLY, CompiledProgram, FinishedMethod
from micronpu.frontend.integers import IntegerIO
from micronpu.frontend.tensors import State
from micronpu.partition.device import constant_bytes
from micronpu.program.digest import stamp
from micronpu.program.plan import read_plan
from micronpu.program.strip import strip
from micronpu.report.budgets import check_budgets, undecided
from micronpu.report.delegation import DelegationReport
from micronpu.report.memory import MemoryReport
from micronpu.report.operations import StateRow
from micronpu.report.warnings import NOT_VERIFIED, WARNING, AccuracyWarning, ReportWarning, check_strict
from micronpu.verify.program import verified
from micronpu.verify.static_checks import of_graph, of_placement
from micronpu.verify.verification import Verification


def program_of(staged: Sequence[Staged], target: str, checks: Verification, clock: Clock) -> CompiledProgram:
    """Return the program of all methods, verified.

    Raises:
        MicroNpuError: it cannot be lowered, differs from the quantized model, or misses a budget.
    """
    with clock.step("lower"), quiet():
        made, notes = lowered(staged, checks.allow_missing_kernels)
        buffer = stamp(made.buffer)
        made = made._replace(buffer=b"")
        hosts = [within(s.host, buffer) for s in staged]
    consists = [part.program_bytes() for host in hosts for part in host.partitions]
    consists += [constant_bytes(graph) for host in hosts for graph in host.core_graphs]
    stripped, methods = strip(buffer), {}
    for own, host in zip(staged, hosts, strict=True):
        plan, _ = read_plan(stripped, method=own.name)
        memory = memory_of(plan, len(stripped), target, consists, host.partitions)
        methods[own.name] = _untried(own, host, buffer, notes, memory, made.handles[own.name or ONLY])
    del stripped
    release()
    program: CompiledProgram = CompiledProgram(buffer, methods, clock.seconds, dict(made.data_files))
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
    quantized, integer_io = own.quantized, own.quantized.integer_io
    inputs, outputs = io_tensors(own.whole, integer_io)
    searched = () if quantized.frontier is None else quantized.frontier.notes
    report = replace(
        host.report,
        notes=(*host.report.notes, *notes, *_io_notes(integer_io), *searched, *quantized.notes),
        program_bytes=len(buffer),
        inputs=inputs,
        outputs=outputs,
        hashes=digests(buffer, host.partitions),
        memory=memory,
        states=tuple(map(_reported, quantized.states)),
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
    seen = (*quantized.warnings, *of_graph(own.whole, exact, proposal=quantized.proposal, accuracy=known))
    unproved = () if any(w.rule == NOT_VERIFIED for w in report.warnings) else _unproved(program)
    searched = () if quantized.frontier is None else quantized.frontier.warnings
    report = replace(report, warnings=(*of_placement(report), *unproved, *searched, *report.warnings, *seen))
    report = replace(report, tools=tool_versions())  # after the run, which imports packages
    if checks.budgets is not None:
        results = checks.budgets.results(report)
        check_budgets(results, strict=checks.strict)
        report = replace(report, budgets=results, warnings=(*report.warnings, *undecided(results)))
    if checks.strict:
        check_strict(report.warnings)
    for warning in report.warnings:
        if warning.is_severe:
            text = f"Method `{own.name}`: {warning}" if own.name else str(warning)
            warn(text, AccuracyWarning)
    return report


def _io_notes(integer_io: IntegerIO | None) -> tuple[str, ...]:
    """Return a note on the meaning of integer inputs and outputs."""
    if integer_io is None:
        return ()
    known = [*integer_io.inputs, *(b for b in integer_io.outputs if b is not None)]
    return (f"The program takes and gives integers q: {'; '.join(map(str, known))}.",)


def _reported(state: State) -> StateRow:
    return StateRow(state.name, state.dtype, tuple(state.initial.shape), state.bytes, state.scale, state.zero_point)
