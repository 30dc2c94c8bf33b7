"""Verification of the finished program against the quantized model.

Rounding differs between the integers of a program and the floats of quantized models, and a difference of one LSB may
grow through the network like other quantization errors.  Errors of operators are usually much larger.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch

from micronpu.base.arrays import Array
from micronpu.base.errors import MicroNpuError, NotOnHostError, RuntimeUnavailableError, WrongResultError
from micronpu.base.memory import release
from micronpu.base.quiet import quiet
from micronpu.frontend.graphs import GraphModule, Node, by_name, map_arg
from micronpu.frontend.integers import IntegerIO
from micronpu.frontend.program import Edge, ProgramView, quantizes_of
from micronpu.frontend.run import Known, Run
from micronpu.frontend.tensors import PREFIX, State, held
from micronpu.ir.graph import Graph
from micronpu.ir.interpreter import interpret
from micronpu.partition.device import CompiledPartition
from micronpu.quantize.data import Trial
from micronpu.quantize.loops import Loop
from micronpu.quantize.running import Eager, Row, tensors_of
from micronpu.quantize.thresholds import CALL_WORK, ON_STEP
from micronpu.report.accuracy import Agreement, Comparison, OutputAccuracy, ProgramAccuracy
from micronpu.report.warnings import NOT_VERIFIED, WARNING, ReportWarning
from micronpu.upstream.session import one_thread
from micronpu.verify import thresholds as at
from micronpu.verify.guard import warnings_of
from micronpu.verify.judge import JudgedResults, judge

Tensors = tuple[torch.Tensor, ...]
_REPORT = "options that leave the operator out, verify=False to have the program, and a report of this defect"


class Runnable(Protocol):
    """A compiled program: what its verification reads of `CompiledProgram`."""

    @property
    def quantized(self) -> torch.nn.Module: ...
    @property
    def partitions(self) -> Sequence[CompiledPartition]: ...
    @property
    def states(self) -> Sequence[State]: ...
    def reset_states(self) -> None: ...
    def _loaded(self) -> object: ...
    def _results(self, *inputs: torch.Tensor) -> tuple[Any, ...]: ...


@dataclass(frozen=True)
class Expected:
    """Expected results of a program."""

    trial: Trial  # the samples for the evaluation
    rows: tuple[Tensors, ...]  # the inputs that are compared with the quantized model, in the program's dtypes
    results: tuple[Tensors, ...]  # of the quantized model for them, as floats
    judged: JudgedResults  # of the quantized model on all samples that count
    module: GraphModule  # the quantized module; its states are inputs and outputs
    integer_io: IntegerIO | None  # meaning of integer inputs and outputs, or None
    proposal: str  # hint for more precision than int8; "" without one

    @classmethod
    def of(
        cls,
        quantized: GraphModule,
        trial: Trial,
        integer_io: IntegerIO | None,
        known: Sequence[Sequence[Row]] | None = None,
        *,
        proposal: str = "",
    ) -> Expected:
        """Run the quantized model in eager mode, which takes as much memory as compiling it: not at the same time."""
        slow = any(isinstance(part, Loop) for part in quantized.modules())  # eager mode calls step by step
        rows = trial.rows[: 1 if slow else None]
        if integer_io is not None:
            rows = tuple(map(integer_io.quantize, rows))
        judged = judge(quantized, trial, integer_io, known)
        eager = Eager(held(quantized))
        with torch.no_grad(), quiet(), one_thread():
            results = tuple(_floats(integer_io, tensors_of(eager.run(*row))) for row in rows)
        return cls(trial, rows, results, judged, quantized, integer_io, proposal)

    def verdict(self, program: Sequence[Row] = ()) -> tuple[ProgramAccuracy | None, tuple[ReportWarning, ...]]:
        """Return the accuracy against the float model, and warnings, of the program's first calls or of the module."""
        accuracy = self.judged.accuracy(program)
        own = self.judged.results[: len(self.trial.recordings)]
        in_float = self.integer_io is None
        return accuracy, warnings_of(self.module, self.trial, own, accuracy, self.proposal, in_float=in_float)


@dataclass(frozen=True)
class Verified:
    """Result of a comparison, for the report."""

    agreement: Agreement
    accuracy: ProgramAccuracy | None = None
    warnings: tuple[ReportWarning, ...] = ()


def verified(program: Runnable, expected: Expected, reads: Sequence[Sequence[str]]) -> Verified:
    """Run the program on a few samples and compare it with the quantized model, which is evaluated on all samples.

    Args:
        reads: by partition, the nodes of the quantized module whose integers it reads.

    Raises:
        WrongResultError: the program fails, which names its partitions; or a result is further off than rounding
            explains, which names the first operator that is.
    """
    trial, rows, wanted = expected.trial, expected.rows, expected.results
    module = program.quantized
    assert isinstance(module, GraphModule)
    if not rows:
        return Verified(Agreement(reason="there are no inputs to run it on"))
    try:
        program._loaded()
        release()
        program.reset_states()
        results = [_floats(expected.integer_io, program._results(*row)) for row in rows]
    except (RuntimeUnavailableError, NotOnHostError) as error:
        what = f"The program was not run on this machine, so its results are not verified: {error.what}"
        missing = ReportWarning(WARNING, NOT_VERIFIED, what, error.hint or "`micronpu doctor`")
        accuracy, warnings = expected.verdict()
        return Verified(Agreement(reason=error.what.rstrip(".")), accuracy, (missing, *warnings))
    except MicroNpuError as error:
        names = ", ".join(f"`{part.name}`" for part in program.partitions) or "none"
        what = f"The compiled program fails on this machine (partitions of the NPU: {names}): {error.what}"
        raise WrongResultError(what, hint=_REPORT) from error
    exact = trial.exact_rows
    program.reset_states()
    edges = _edges(module)
    equal = elements = 0
    largest = bound = 0.0
    hanging: set[int] = set()
    for number, (ours, theirs) in enumerate(zip(results, wanted, strict=True)):
        floats = exact[number] if number < len(exact) else ()
        for index, (y, q) in enumerate(zip(ours, theirs, strict=True)):
            elements += q.numel()
            equal += int((y == q).sum()) + (int((y.isnan() & q.isnan()).sum()) if q.is_floating_point() else 0)
            edge = edges[index] if index < len(edges) else None
            y, q = (value if edge is None else edge.dequantized(value) for value in (y, q))
            if not q.is_floating_point():
                continue
            real = floats[index] if index < len(floats) and floats[index].shape == q.shape else None
            step = edge.qparams.scale[0] if edge is not None else 0.0
            found, allowed = _difference(y, q, real, step)
            if found > allowed:
                share = allowed / found
                upto = rows[: number + 1]
                if not _hangs_on_rounding(program, upto, expected.integer_io, index, edge, y, q, share):
                    raise _wrong(program, module, rows[: number + 1], reads, index, found, allowed)
                hanging.add(index)
            elif found > largest or not bound:
                largest, bound = max(found, largest), allowed
    agreement = Agreement(len(rows), elements, equal / max(elements, 1), largest, bound, tuple(sorted(hanging)))
    accuracy, warnings = expected.verdict(_judged_calls(program, expected))
    return Verified(agreement, _with_program(accuracy, trial, results, wanted), warnings)


def _judged_calls(program: Runnable, expected: Expected) -> list[Row]:
    """Return the program's results for as many calls of the judged recordings as are quick to run."""
    each = expected.trial.macs + CALL_WORK
    recordings = expected.judged.trial.recordings
    rows = itertools.islice(
        itertools.chain.from_iterable(recordings), max(len(expected.rows), at.PROGRAM_JUDGED // each)
    )
    firsts = {*itertools.accumulate(map(len, recordings), initial=0)} if program.states else {0}
    found = []
    for number, row in enumerate(rows if expected.judged.trial.exact else ()):
        if number in firsts:
            program.reset_states()
        given = row if expected.integer_io is None else expected.integer_io.quantize(row)
        found.append(_floats(expected.integer_io, program._results(*given)))
    program.reset_states()
    return found


def _with_program(
    accuracy: ProgramAccuracy | None, trial: Trial, results: Sequence[Tensors], wanted: Sequence[Tensors]
) -> ProgramAccuracy | None:
    """Return the accuracy with the comparison of program and quantized model; None without either."""
    known = {output.output: output for output in accuracy.outputs} if accuracy is not None else {}
    outputs = []
    for index, first in enumerate(wanted[0]):
        if first.is_floating_point():
            ours, theirs = ([r[index].double().numpy() for r in rows] for rows in (results, wanted))
            beside, output = Comparison.of(ours, theirs), known.get(index, OutputAccuracy(index))
            if output.float_model is not None and output.float_model.agreeing is None:  # known from more samples
                beside = replace(beside, agreeing=None)
            outputs.append(replace(output, quantized=beside))
    if accuracy is not None:
        return replace(accuracy, outputs=tuple(outputs))
    return ProgramAccuracy(trial.numbers, trial.of, trial.held_out, tuple(outputs)) if outputs else None


def _difference(y: torch.Tensor, q: torch.Tensor, real: torch.Tensor | None, scale: float) -> tuple[float, float]:
    """Return the largest difference of two results, and the allowed one, in LSB."""
    known = q.isfinite() & y.isfinite()
    if not bool(known.any()):
        return 0.0, 0.0
    peak = float(q[known].abs().max())
    step = scale or peak / 127
    if not step:
        return (math.inf if bool((y[known] != 0).any()) else 0.0), 0.0
    found = float((y[known].double() - q[known].double()).abs().max()) / step
    lost = at.UNKNOWN * peak
    if real is not None:
        sure = known & real.isfinite()
        lost = float((q[sure].double() - real[sure].double()).abs().max()) if bool(sure.any()) else 0.0
    return found, (at.GROWTH * lost + at.DIFFERENCE * max(peak / 127, step)) / step


def _hangs_on_rounding(
    program: Runnable,
    rows: Sequence[Tensors],
    integer_io: IntegerIO | None,
    index: int,
    edge: Edge | None,
    y: torch.Tensor,
    q: torch.Tensor,
    share: float,
) -> bool:
    """Return True if every element of a result is near to one of the quantized model with perturbed rounding."""
    module = program.quantized
    assert isinstance(module, GraphModule)
    nearest = (y.double() - q.double()).abs()
    known = q.isfinite() & y.isfinite()
    near = share * float(nearest[known].max())
    with torch.no_grad(), quiet(), one_thread():
        for seed in range(at.TRIES):
            program.reset_states()
            tried = _floats(integer_io, perturbed(module, rows if program.states else rows[-1:], seed))[index]
            tried = tried if edge is None else edge.dequantized(tried)
            nearest = torch.minimum(nearest, (y.double() - tried.double()).abs())
            if bool((nearest[known] <= near).all()):
                break
    program.reset_states()
    return bool((nearest[known] <= near).all())


def _floats(integer_io: IntegerIO | None, results: Sequence[object]) -> Tensors:
    """Return results in the dtypes of the float program."""
    found = tensors_of(results)
    return found if integer_io is None else integer_io.dequantize(found)


def _edges(module: GraphModule) -> list[Edge | None]:
    view = ProgramView(module)
    output = module.graph.output_node()
    found: list[Edge | None] = []

    def add(node: Node) -> Node:
        edge = view.edge(node)
        if isinstance(node.meta.get("val"), torch.Tensor) or edge is not None:
            found.append(edge)
        return node

    map_arg(output.args, add)
    return found


# ---------------------------------------------------------------- search for the differing operator


def _recorded(module: GraphModule, rows: Sequence[Tensors]) -> dict[str, Array]:
    """Run a quantized module; return the integers that it computes, of the last call."""
    integers: dict[str, Array] = {}

    def record(n: Node, result: object, _: object) -> Any:
        if isinstance(result, torch.Tensor) and result.dtype in (torch.int8, torch.int16, torch.int32):
            if n.op == "get_attr":  # it was an input when partitions were made, and is written at the end of the call
                integers[str(n.target).removeprefix(PREFIX)] = result.numpy().copy()
            else:
                integers[n.name] = result.numpy()
        return result

    run = Run(module)
    with torch.no_grad(), quiet():
        for row in rows:
            run.run(*row, behind=record)
    return integers


def _wrong(
    program: Runnable,
    module: GraphModule,
    rows: Sequence[Tensors],
    reads: Sequence[Sequence[str]],
    index: int,
    found: float,
    allowed: float,
) -> WrongResultError:
    blame = _first_that_differs(program, module, rows, reads)
    where = f" The first operator that differs is {blame}." if blame else ""
    if blame is None:
        where = " Each operator of the graph agrees with it on the same operands: what was made of the graph does not."
    return WrongResultError(
        f"The compiled program gives a result {index} that is {found:.3g} steps from that of the quantized model, "
        f"where at most {allowed:.3g} are expected.{where}",
        hint=_REPORT,
    )


def _first_that_differs(
    program: Runnable, module: GraphModule, rows: Sequence[Tensors], reads: Sequence[Sequence[str]]
) -> str | None:
    """Return the first NPU operation that differs from the quantized module by more than rounding, on the module's
    values.

    Values that the module also has replace the results of previous operations, so that each operation is checked alone.
    Returns "" if a partition cannot be examined, and None if all operations agree.
    """
    program.reset_states()
    integers = _recorded(module, rows if program.states else rows[-1:])
    program.reset_states()
    whole = True
    for part, names in zip(program.partitions, reads, strict=True):
        if any(name not in integers for name in names):
            whole = False
            continue
        look = _Look(module, integers, part.graph)
        try:
            shaped = [
                np.ascontiguousarray(_as(integers[name], t.shape))
                for name, t in zip(names, part.graph.inputs, strict=True)
            ]
            interpret(part.graph, shaped, observe=look)
        except (MicroNpuError, ValueError):
            whole = False
        if look.found:
            return look.found
    return None if whole and program.partitions else ""


class _Look:
    """Compares results of operations with the integers of a quantized module, and passes on the latter."""

    def __init__(self, module: GraphModule, integers: Mapping[str, Array], graph: Graph) -> None:
        self._integers = integers
        self._last: dict[str, Any] = {}  # the last operation of each node of the program
        self._quantized: dict[str, tuple[str, Edge]] = {}
        for node in graph.nodes:
            for name in node.origin.nodes:
                self._last[name] = node
        nodes = by_name(module)
        for name in self._last:
            quantize = next(iter(quantizes_of(nodes[name])), nodes[name]) if name in nodes else None
            if quantize is not None and (edge := Edge.of(quantize)) is not None:
                self._quantized[name] = quantize.name, edge
        self.found = ""  # the first operator that differs, with its source line

    def __call__(self, node: Any, result: Array) -> Array | None:
        for name in reversed(node.origin.nodes):
            if self._last[name] is not node or name not in self._quantized:
                continue
            quantize, edge = self._quantized[name]
            wanted = self._integers.get(quantize)
            if wanted is None or wanted.size != result.size or wanted.dtype != result.dtype:
                continue
            if not math.isclose(edge.scale, node.output.type.scale, rel_tol=at.SAME_SCALE):
                continue
            instead, steps = _nearest_layout(result, wanted)
            if steps > (at.ALONE if result.dtype == np.int8 else at.ALONE_INT16) and not self.found:
                self.found = f"`{node.origin.nodes[0]}`{node.origin.at}"  # not the fused clamp
            return instead
        return None


def _as(array: Array, shape: tuple[int, ...]) -> Array:
    """Return an array in the layout of a partition's inputs and outputs."""
    if array.ndim == 4 and tuple(array.transpose(0, 2, 3, 1).shape) == shape:
        return array.transpose(0, 2, 3, 1)
    return array.reshape(shape)


def _nearest_layout(result: Array, wanted: Array) -> tuple[Array, float]:
    """Return the expected result in the closest layout, and the difference in LSB."""
    forms = [wanted.reshape(result.shape)]
    if result.ndim == 4:
        count, high, wide, depth = result.shape
        forms.append(np.moveaxis(wanted.reshape(count, depth, high, wide), 1, -1))
    found = [float(np.abs(f.astype(np.int64) - result).max(initial=0)) for f in forms]
    best = found.index(min(found))
    return np.ascontiguousarray(forms[best]), found[best]


# ---------------------------------------------------------------- perturbed rounding


def perturbed(module: GraphModule, rows: Sequence[Sequence[torch.Tensor]], seed: int) -> tuple[torch.Tensor, ...]:
    """Return the results of the last sample, with rounded values that are perturbed by up to an LSB."""
    # The position of the largest of nearly equal values, or a comparison of two, may then change without an error.
    random = torch.Generator().manual_seed(seed)
    share = 0.5 ** (seed % 4)  # maximum share of perturbed values; many at once mask each other
    view = ProgramView(module)

    def moved(n: Node, result: Any, values: Known) -> Any:
        edge, source = view.edge(n), n.args[0] if n.args else None
        if edge is None or not isinstance(source, Node) or source.op == "placeholder" or result.dtype not in at.ROUNDED:
            return result
        exact = values[source].double() / edge.qparams.scale[0]
        rounded = (exact - exact.round()).abs() > ON_STEP
        most = at.ROUNDED[result.dtype]
        moves = rounded & (torch.rand(result.shape, generator=random) < share)
        steps = torch.randint(-most, most + 1, result.shape, generator=random) * moves
        return (result.to(torch.int32) + steps).clamp(*edge.limits).to(result.dtype)

    run = Run(module)
    return [tensors_of(run.run(*row, behind=moved)) for row in rows][-1]
