"""The program that was made, run beside the quantized model: the last look before the user gets it.

Rounding differs between the integers of a program and the floats that quantized models compute with, and a step may
grow on its way through the network as any other error of quantization does.  What an operator computes wrongly is of
another size, as a rule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.fx import GraphModule, Interpreter, Node

from micronpu.base.errors import MicroNpuError, RuntimeUnavailableError, WrongResultError
from micronpu.base.quiet import quiet
from micronpu.compiler.program import CompiledProgram
from micronpu.compiler.shaken import TRIES, shaken
from micronpu.frontend.program import ProgramView, is_dequantize, is_quantize
from micronpu.frontend.states import PREFIX
from micronpu.ir.interpreter import interpret
from micronpu.quantize.loops import Loop
from micronpu.quantize.running import one_thread
from micronpu.quantize.trial import INPUTS, Trial, tensors_of
from micronpu.report.accuracy import Comparison, OutputAccuracy, ProgramAccuracy
from micronpu.report.agreement import Agreement

_LARGE = 30_000_000  # multiply-accumulates, a tenth of a second in LiteRT's reference kernels
_STEPS, _GROWTH = 4, 2.0  # roundings that differ may cost what quantization costs, on top of that
_UNKNOWN = 0.1  # of the largest value: what quantization may cost where the float model is not known

Tensors = tuple[torch.Tensor, ...]


def verified(
    program: CompiledProgram, trial: Trial, reads: Sequence[Sequence[str]]
) -> tuple[Agreement, ProgramAccuracy | None]:
    """Runs the program on a few rows and compares with the quantized model, and the float model where it is known.

    Args:
        reads: by partition, the nodes of the quantized module whose integers it reads.

    Raises:
        WrongResultError: a result is further off than rounding explains; names the first operator that is.
    """
    most = len(trial.rows) if trial.held_out else INPUTS
    slow = any(isinstance(part, Loop) for part in program.quantized.modules())  # eager mode calls step by step
    rows = trial.rows[: 1 if slow else max(1, min(most, _LARGE // max(program.report.macs, 1)))]
    if program.borders is not None:
        rows = tuple(map(program.borders.quantize, rows))
    module = program.quantized
    assert isinstance(module, GraphModule)
    if not rows:
        return Agreement(reason="there are no inputs to run it on"), None
    # First, since the program, once loaded, stays so, beside what this takes.
    program.reset_states()
    with torch.no_grad(), quiet(), one_thread():
        wanted = [_floats(program, tensors_of(module(*row))) for row in rows]
    try:
        program.reset_states()
        results = [_floats(program, program._results(*row)) for row in rows]
    except RuntimeUnavailableError as error:
        return Agreement(reason=error.what.rstrip(".")), None
    except MicroNpuError as error:
        return Agreement(reason=f"this machine does not run it. {error.what.rstrip('.')}"), None
    exact = trial.exact
    program.reset_states()
    scales = _scales(module)
    equal = elements = 0
    largest = bound = 0.0
    hanging: set[int] = set()
    for number, (ours, theirs) in enumerate(zip(results, wanted, strict=True)):
        floats = exact[number] if number < len(exact) else ()
        for index, (y, q) in enumerate(zip(ours, theirs, strict=True)):
            elements += q.numel()
            equal += int((y == q).sum()) + int((y.isnan() & q.isnan()).sum()) if q.is_floating_point() else 0
            if not q.is_floating_point():
                equal += int((y == q).sum())
                continue
            real = floats[index] if index < len(floats) and floats[index].shape == q.shape else None
            step = scales[index] if index < len(scales) else 0.0
            found, allowed = _difference(y, q, real, step)
            if found > allowed:
                if not _hangs_on_rounding(program, rows[: number + 1], index, y, q, allowed / max(found, 1e-12)):
                    raise _wrong(program, module, rows[: number + 1], reads, index, found, allowed)
                hanging.add(index)
                continue
            if found > largest or not bound:
                largest, bound = max(found, largest), allowed
    agreement = Agreement(len(rows), elements, equal / max(elements, 1), largest, bound, tuple(sorted(hanging)))
    return agreement, _accuracy(trial, results, wanted, exact[: len(rows)])


def _accuracy(
    trial: Trial, results: Sequence[Tensors], wanted: Sequence[Tensors], exact: Sequence[Tensors]
) -> ProgramAccuracy | None:
    """The same results as a report shows them; None where no output is a float."""
    outputs = []
    for index, first in enumerate(wanted[0]):
        if not first.is_floating_point():
            continue
        ours, theirs = [[r[index].double().numpy() for r in rows] for rows in (results, wanted)]
        fits = len(exact) == len(ours) and all(index < len(e) and e[index].shape == first.shape for e in exact)
        real = Comparison.of(ours, [e[index].double().numpy() for e in exact]) if fits else None
        outputs.append(OutputAccuracy(index, real, Comparison.of(ours, theirs)))
    if not outputs:
        return None
    return ProgramAccuracy(trial.numbers[: len(results)], trial.of, trial.held_out, tuple(outputs))


def _difference(y: torch.Tensor, q: torch.Tensor, real: torch.Tensor | None, scale: float) -> tuple[float, float]:
    """Largest difference of two results, and what it may be, in steps."""
    known = q.isfinite() & y.isfinite()
    if not bool(known.any()):
        return 0.0, 0.0
    peak = float(q[known].abs().max())
    step = scale or peak / 127
    if not step:
        return (math.inf if bool((y[known] != 0).any()) else 0.0), 0.0
    found = float((y[known].double() - q[known].double()).abs().max()) / step
    lost = _UNKNOWN * peak
    if real is not None:
        sure = known & real.isfinite()
        lost = float((q[sure].double() - real[sure].double()).abs().max()) if bool(sure.any()) else 0.0
    return found, (_GROWTH * lost + _STEPS * max(peak / 127, step)) / step


def _hangs_on_rounding(
    program: CompiledProgram, rows: Sequence[Tensors], index: int, y: torch.Tensor, q: torch.Tensor, share: float
) -> bool:
    """Whether every element of a result is near to one that the quantized model gives when it rounds otherwise.

    Args:
        index: of the result.
        y, q: the program's, and the quantized model's.
        share: of their largest difference that is near.
    """
    module = program.quantized
    assert isinstance(module, GraphModule)
    nearest = (y.double() - q.double()).abs()
    known = q.isfinite() & y.isfinite()
    near = share * float(nearest[known].max())
    with torch.no_grad(), quiet(), one_thread():
        for seed in range(TRIES):
            program.reset_states()
            tried = _floats(program, shaken(module, rows if program.states else rows[-1:], seed))[index]
            nearest = torch.minimum(nearest, (y.double() - tried.double()).abs())
            if bool((nearest[known] <= near).all()):
                break
    program.reset_states()
    return bool((nearest[known] <= near).all())


def _floats(program: CompiledProgram, results: Sequence[Any]) -> Tensors:
    """Results as the float program gives them."""
    found = tensors_of(results)
    return found if program.borders is None else program.borders.dequantize(found)


def _scales(module: GraphModule) -> list[float]:
    """The step of each result, 0.0 where the host computes it in float."""
    view = ProgramView(module)
    output = module.graph.output_node()
    found: list[float] = []

    def add(node: Node) -> Node:
        edge = view.edge(node) if is_dequantize(node) or is_quantize(node) else None
        if isinstance(node.meta.get("val"), torch.Tensor) or edge is not None:
            found.append(edge.qparams.scale[0] if edge is not None else 0.0)
        return node

    torch.fx.map_arg(output.args, add)
    return found


# ---------------------------------------------------------------- who is to blame


class _Record(Interpreter):
    """Runs a quantized module and keeps the integers that it computes."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self.integers: dict[str, np.ndarray[Any, Any]] = {}

    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        integers = (torch.int8, torch.int16, torch.int32)
        if isinstance(result, torch.Tensor) and result.dtype in integers:
            # A copy of a state, which is written at the end of the call.
            self.integers[_source_of(n)] = result.numpy().copy() if n.op == "get_attr" else result.numpy()
        return result


def _source_of(node: Node) -> str:
    """The name that partitions have for a value; a state was an input when they were made."""
    return str(node.target).removeprefix(PREFIX) if node.op == "get_attr" else node.name


def _wrong(
    program: CompiledProgram,
    module: GraphModule,
    rows: Sequence[Tensors],
    reads: Sequence[Sequence[str]],
    index: int,
    found: float,
    allowed: float,
) -> WrongResultError:
    blame = _first_that_differs(program, module, rows, reads)
    where = f" The first operator that differs is {blame}." if blame else ""
    return WrongResultError(
        f"The compiled program gives a result {index} that is {found:.3g} steps from that of the quantized model, "
        f"where at most {allowed:.3g} are expected.{where}",
        hint="options that leave the operator out, verify=False to have the program all the same, and a report of "
        "this defect",
    )


def _first_that_differs(
    program: CompiledProgram, module: GraphModule, rows: Sequence[Tensors], reads: Sequence[Sequence[str]]
) -> str:
    """The first NPU operation that is further from the quantized module than rounding explains, fed with its values."""
    record = _Record(module)
    program.reset_states()
    with torch.no_grad(), quiet():
        for row in rows if program.states else rows[-1:]:
            record.run(*row)
    program.reset_states()
    for part, names in zip(program.partitions, reads, strict=True):
        if any(name not in record.integers for name in names):
            continue
        given = [record.integers[name] for name in names]
        named: list[tuple[str, str, float]] = []

        def look(node: Any, result: Any, named: list[tuple[str, str, float]] = named) -> None:
            for name in reversed(node.origin.nodes):
                wanted = record.integers.get(_quantize_of(module, name))
                if wanted is not None and wanted.size == result.size:
                    named.append((name, node.origin.source, _steps(result, wanted)))
                    return

        try:
            shaped = [
                np.ascontiguousarray(g if g.shape == t.shape else _as(g, t.shape))
                for g, t in zip(given, part.graph.inputs, strict=True)
            ]
            interpret(part.graph, shaped, observe=look)
        except (MicroNpuError, ValueError):
            continue
        for name, source, steps in named:
            if steps > 2 * _STEPS:
                return f"`{name}`{f' ({source})' if source else ''}"
    return ""


def _quantize_of(module: GraphModule, name: str) -> str:
    """Name of the quantize that reads a node, behind a clamp that was fused; the node's own where it is one."""
    node = next((n for n in module.graph.nodes if n.name == name), None)
    if node is None:
        return ""
    if is_quantize(node):
        return name
    for user in node.users:
        if is_quantize(user):
            return str(user.name)
    return ""


def _as(array: np.ndarray[Any, Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """An array in the layout of a partition's border."""
    if array.ndim == 4 and tuple(array.transpose(0, 2, 3, 1).shape) == shape:
        return array.transpose(0, 2, 3, 1)
    return array.reshape(shape)


def _steps(result: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> float:
    """Largest difference, in the layout in which the two are closest."""
    forms = [result.reshape(-1)]
    if result.ndim == 4:
        forms.append(np.moveaxis(result, -1, 1).reshape(-1))
    flat = wanted.reshape(-1).astype(np.int64)
    return min(float(np.abs(f.astype(np.int64) - flat).max(initial=0)) for f in forms)
