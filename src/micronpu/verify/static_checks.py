"""Static checks, which run no program: of accuracy, from data, qparams and the graph, and of kernels on the core."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch

from micronpu.base.errors import UnsupportedError
from micronpu.base.quiet import quiet
from micronpu.base.texts import plural
from micronpu.frontend import program
from micronpu.frontend.checks import hint_for
from micronpu.frontend.graphs import Graph, GraphModule, Node, by_name, findings
from micronpu.frontend.importer import known_import
from micronpu.frontend.tensors import results_of
from micronpu.ir.facts import Facts, Form
from micronpu.ir.lowering import facts_of
from micronpu.ir.op import OutputQuantization
from micronpu.ir.types import DType
from micronpu.ops.facts import name_of
from micronpu.partition.kernels import has_some_kernel
from micronpu.partition.write import MethodInput, without_kernel, written
from micronpu.quantize.data import of_recording
from micronpu.quantize.nodes import moves, rule_of
from micronpu.quantize.running import Row
from micronpu.quantize.thresholds import SEVERAL
from micronpu.report.accuracy import ProgramAccuracy
from micronpu.report.delegation import DelegationReport
from micronpu.report.verdict import SEARCHED_FOR, Verdict
from micronpu.report.warnings import NO_KERNEL, NOTE, NOTHING_DELEGATED, PRODUCTS_ON_CORE, WARNING, ReportWarning
from micronpu.verify import thresholds
from micronpu.verify.judge import ElementSources, sources_of, unequal_parts
from micronpu.verify.sensitivity import exported_call


def of_data(
    rows: Sequence[Row],
    names: Sequence[str],
    calibrating: int,
    distinct: int | None = None,
    steps: int = 255,
    fixed: Sequence[str] = (),
) -> tuple[ReportWarning, ...]:
    """Return warnings about calibration samples.

    Args:
        calibrating: number of calls that choose the ranges.
        distinct: number of distinct samples or recordings; None if unknown.
        steps: number of LSBs in the range of an input.
        fixed: states that have their first value in all samples, and other values in use.
    """
    found = list(_uninformative(rows, names, distinct))
    if not found and calibrating == 1 and all(value.dim() == 0 or value.shape[0] == 1 for value in rows[0]):
        what = "The ranges were chosen with one calibration row: what is larger in other inputs is clipped."
        found.append(ReportWarning(NOTE, "one-row", what, "some dozens of typical inputs"))
    if len(rows) >= SEVERAL:
        found += [
            warning
            for name, values in zip(names, zip(*rows, strict=True), strict=True)
            if (warning := _unlike_features(name, values, steps)) is not None
        ]
    for name in fixed:
        what = f"The state `{name}`, which other methods write, has its first value in all calibration samples of this "
        what += "method: what follows from it has ranges that fit no other value."
        hint = "sequences of calls in which the methods take turns, see docs/methods.md"
        found.append(ReportWarning(WARNING, "uninformative-data", what, hint))
    return tuple(found)


def of_graph(
    module: GraphModule, exact: Sequence[Row], *, proposal: str, accuracy: ProgramAccuracy | None = None
) -> tuple[ReportWarning, ...]:
    """Return warnings about a quantized module."""
    view = program.ProgramView(module)
    lost: list[ReportWarning] = []
    if accuracy is None or not accuracy.held_out or (accuracy.sqnr or -math.inf) < thresholds.NO_LOSS:
        lost = list(findings(module, lambda node: _small_operands(view, node, proposal)).values())
    parts: list[ReportWarning] = []
    sources = sources_of(module) if accuracy is None else []
    for number, node in enumerate(results_of(module)):
        values = [row[number] for row in exact if number < len(row)]
        if values:
            said = [_small_part(view, number, node, values)]
            if accuracy is None:  # otherwise they have been measured
                said.append(_unequal_parts(view, number, node, values, sources[number]))
            parts += [warning for warning in said if warning is not None]
    return (*parts, *lost)


def of_placement(report: DelegationReport) -> tuple[ReportWarning, ...]:
    """Return a warning if products, or all operators, of a program for an NPU are in float on the core."""
    if not report.has_npu or not report.in_float:
        return ()
    if report.delegated:
        return _products_on_core(report)
    first = report.in_float[0]
    reason = first.reasons[0] if first.reasons else None
    what = f"No operator of the program is on the NPU; the first of {report.operators} is `{first.node}`"
    what += first.origin.at
    what += f": {reason.sentence} Found: {reason.detail.rstrip('.')}." if reason is not None else "."
    hint = (reason.hint if reason is not None else "") or "`micronpu check`, which gives the reason of each operator"
    return (ReportWarning(WARNING, NOTHING_DELEGATED, what, hint, **_place_of_verdict(first)),)


def _products_on_core(report: DelegationReport) -> tuple[ReportWarning, ...]:
    """Return a warning if the core computes multiply-accumulate operations in float, unless a search chose that."""
    asked = (v for v in report.in_float if all(reason.rule != SEARCHED_FOR for reason in v.reasons))
    slow = sorted((v for v in asked if v.macs), key=lambda v: -v.macs)
    if not slow:
        return ()
    first, macs = slow[0], sum(v.macs for v in slow)
    also = f" and {plural(len(slow) - 1, 'other operator')}" if len(slow) > 1 else ""
    what = f"The core computes `{first.node}`{first.origin.at}{also} in float: {macs:,} MACs, "
    what += f"{macs / report.macs:.1%} of all, in about {sum(v.cycles for v in slow):,} of its cycles."
    hint = next((reason.hint for reason in first.reasons if reason.hint), "")
    return (ReportWarning(WARNING, PRODUCTS_ON_CORE, what, hint, **_place_of_verdict(first)),)


def _place_of_verdict(verdict: Verdict) -> dict[str, Any]:
    where, kind = verdict.origin, verdict.operator.split(".")[0]
    return {"node": verdict.node, "operator": kind, "module": where.module, "source": where.source}


# ---------------------------------------------------------------- inputs


def _uninformative(rows: Sequence[Row], names: Sequence[str], distinct: int | None) -> tuple[ReportWarning, ...]:
    """Return warnings about uninformative data: one value everywhere, or few samples that are repeated."""
    floats = [
        (name, *_ends(values))
        for name, values in zip(names, zip(*rows, strict=True), strict=True)
        if values[0].is_floating_point() and values[0].numel() > 1
    ]
    different = len(rows)
    if distinct is not None and (distinct == 1 or thresholds.REPEATS * distinct <= len(rows)):
        different = len({of_recording([row]) for row in rows})
    level, fit = WARNING, "the ranges fit no other input, and the accuracy is not meaningful"
    constant = [(name, low) for name, low, high in floats if low == high]
    if constant and len(constant) == sum(v.numel() > 1 for v in rows[0]) and len({low for _, low in constant}) == 1:
        what = f"All values of the calibration data are {constant[0][1]:g}"
    elif different == 1 and len(rows) > 1:
        what = f"The {len(rows)} calibration samples are one sample, {len(rows)} times"
    elif thresholds.REPEATS * different <= len(rows):
        level, what = NOTE, f"Only {different} of the {len(rows)} calibration samples are different"
        fit = "what is larger in other inputs is clipped"
    elif constant:
        level, fit = NOTE, "its range fits no other value"
        what = f"All values of the input `{constant[0][0]}` are {constant[0][1]:g} in the calibration data"
    else:
        return ()
    return (ReportWarning(level, "uninformative-data", f"{what}: {fit}.", "some dozens of typical inputs that differ"),)


def _ends(values: Sequence[torch.Tensor]) -> tuple[float, float]:
    ends = [float(end) for value in values if value.numel() for end in value.detach().aminmax()] or [0.0]
    return min(ends), max(ends)


def _moments(values: Sequence[torch.Tensor], axis: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return standard deviation and mean of each feature; one tensor at a time is copied to float64."""
    total, squares = torch.zeros(values[0].shape[axis]).double(), torch.zeros(values[0].shape[axis]).double()
    count = sum(value.numel() for value in values) // len(total)
    for value in values:
        total += value.detach().double().movedim(axis, 0).flatten(1).sum(1)
    means = total / count
    for value in values:
        squares += (value.detach().double().movedim(axis, 0).flatten(1) - means[:, None]).square_().sum(1)
    return (squares / max(count - 1, 1)).sqrt(), means


def _unlike_features(name: str, values: Sequence[torch.Tensor], steps: int) -> ReportWarning | None:
    """Return a warning about a feature that varies by less than an LSB, or that is constant."""
    first = values[0]
    if not first.is_floating_point() or first.dim() < 2:
        return None
    low, high = _ends(values)
    step = (max(high, 0.0) - min(low, 0.0)) / steps
    constant = None
    for axis in {1} if first.dim() == 4 else {1, first.dim() - 1}:
        if not 2 <= first.shape[axis] <= thresholds.FEATURES:
            continue
        deviations, means = _moments(values, axis)
        varies = deviations > thresholds.VARIES * means.abs()
        deviations = torch.where(varies, deviations, torch.inf)
        small = int(deviations.argmin())
        if float(deviations[small]) < thresholds.INSIDE * step:
            what = f"Feature {small} of the input `{name}` (axis {axis}) varies by {float(deviations[small]):.3g} "
            what += f"around {float(means[small]):.3g}, less than the scale {step:.3g} can represent."
            hint = "features standardised before the model or first in it, (x - mean) / deviation"
            return ReportWarning(NOTE, "unlike-features", what, hint, node=name, operator="input")
        if len(varies) <= thresholds.FEW_FEATURES and varies.any() and not varies.all():
            fixed = int(varies.int().argmin())
            constant = ReportWarning(
                NOTE,
                "uninformative-data",
                f"Feature {fixed} of the input `{name}` (axis {axis}) is {float(means[fixed]):.3g} in all calibration "
                "samples: the ranges fit no other value of it.",
                "calibration samples in which it varies, if it does so in use",
                node=name,
                operator="input",
            )
    return constant


# ---------------------------------------------------------------- functions of small operands


def place_of(node: Node | None) -> dict[str, Any]:
    """Return the place of an operator, as fields of a warning; empty without one."""
    if node is None:
        return {}
    where = program.origin_of(node)
    operator = "input" if node.op == "placeholder" else program.overload_name(node).split(".")[0]
    return {"node": exported_call(node)[0], "operator": operator, "module": where.module, "source": where.source}


def _first_step(
    kind: Facts, written: Facts, step: float, ends: tuple[float, float], most: float
) -> tuple[float, float] | None:
    """Return the smallest relevant operand, and the share of the results' range between it and the next one, or None.

    Args:
        kind: the function.
        written: the model's function, which may be computed by another.
        ends: range of the results.
        most: the largest operand.
    """
    low, high = ends
    own, whole = kind.amplifier, written.amplifier
    if own is None or whole is None:
        return None
    try:
        least = max(own.inverse(high if own.divides else low), 0.0) or (
            0.0 if kind.form in (Form.ROOT, Form.LOGARITHM_OF_MORE) else step * thresholds.FIRST
        )
        reached = min(high, own.of(most)) if kind.form is Form.ROOT else high  # a margin of its range is not reached
        jump = abs(own.of(least + step) - own.of(least)) / (reached - low)
        if written is not kind:  # a logarithm, whose first LSB covers less of the range than that of the original
            first = whole.of(least)
            jump = max(jump, abs((whole.of(least + step) - first) / (whole.of(most) - first)))
    except (OverflowError, ValueError, ZeroDivisionError):
        return None
    return least, jump


def _small_operands(view: program.ProgramView, node: Node, proposal: str) -> ReportWarning | None:
    """Return a warning for a function that amplifies small operands which int8 rounds to the same value."""
    if not program.is_compute(node):
        return None
    kind = facts_of(name := program.overload_name(node))
    operand = node.args[0] if node.args else None
    if kind.amplifier is None or not isinstance(operand, Node):
        return None
    given, made = view.edge(operand), next(iter(map(view.edge, program.quantizes_of(node))), None)
    if given is None or made is None or given.dtype is not DType.INT8 or view.constant(operand.args[0]) is not None:
        return None
    stated = ((other, facts_of(other)) for other in sorted(program.written_names(node)))
    others = ((other, found) for other, found in stated if found.amplifier is not None and found is not kind)
    name, written = next(others, (name, kind))
    if Form.ROOT in (kind.form, written.form) and not _is_power(operand):
        return None
    step = given.qparams.scale[0]
    found = _first_step(kind, written, step, made.range, given.range[1])
    if found is None or found[1] < (thresholds.ROOT_JUMP if kind.form is Form.ROOT else thresholds.JUMP):
        return None
    least, jump = found
    where = place_of(node)
    at = f" at {where['source']}" if where["source"] else ""
    what = f"`{where['node']}`{at}" if written.form is not Form.QUOTIENT else f"The division{at}"
    own = exported_call(node)[1].removeprefix("aten.")
    if own and facts_of(own).amplifier is None:  # a part of an operator, such as of a norm
        what, hint = f"The `{name_of(name)}` in `{where['node']}`{at}", "micronpu.fix(model, data, target)"
    else:
        divides = written.amplifier is not None and written.amplifier.divides
        hint = "magnitudes instead of powers (half the range in decibels)"
        hint = "divisors that stay away from zero, as with clamp(min=...)" if divides else hint
        hint = (f"{proposal}, or " if proposal else "") + f"{hint}, or that part before the model"
    return ReportWarning(
        NOTE,
        "int8-power",
        f"{what} reads int8 in steps of {step:.3g}, and values down to {least:.3g} count: the first step is "
        f"{min(jump, 1.0):.0%} of the range of its result.",
        hint,
        **where | {"operator": name_of(name)},
    )


def _is_power(node: Node) -> bool:
    """Return True if a value is a square, or a sum of squares."""
    while True:
        if program.is_conversion(node):
            (node,) = node.all_input_nodes[:1]
            continue
        name = program.overload_name(node)
        given = program.arguments(node) if name else {}
        given = {key: program.float_behind(value) if isinstance(value, Node) else value for key, value in given.items()}
        stated = facts_of(name)
        if name and stated.power_of(given) == 2:
            return True
        keeps = stated.adds or moves(node)
        if not keeps or not node.all_input_nodes:
            return False
        node = node.all_input_nodes[0]


# ---------------------------------------------------------------- outputs


def _unequal_parts(
    view: program.ProgramView, number: int, node: Node, values: Sequence[torch.Tensor], sources: ElementSources | None
) -> ReportWarning | None:
    """Return a warning for an output with parts that are far smaller than others."""
    edge = view.edge(node)
    if edge is None or edge.dtype is not DType.INT8 or sources is None or sources.number.shape != values[0].shape:
        return None
    exact = [value.detach().double().numpy() for value in values]
    parts, step = unequal_parts(exact, exact, sources), edge.qparams.scale[0]
    if not parts or parts[-1].rms >= thresholds.FEW_STEPS * step:
        return None
    return ReportWarning(
        NOTE,
        "unequal-parts",
        f"Output {number} joins values of unequal size: {parts[-1].what} of size {parts[-1].rms:.3g} beside "
        f"{parts[0].what} of size {parts[0].rms:.3g}, in steps of {step:.3g}.",
        "return them separately, each with its own qparams",
        output=number,
    )


def _small_part(
    view: program.ProgramView, number: int, node: Node, values: Sequence[torch.Tensor]
) -> ReportWarning | None:
    """Return a warning for an output that is a small part of a tensor with far larger values."""
    edge = view.edge(node)
    taken = _taken(node)
    if edge is None or taken is None or edge.dtype is not DType.INT8 or not values[0].is_floating_point():
        return None
    low, high = _ends(values)
    low, high = min(0.0, low), max(0.0, high)
    step = edge.qparams.scale[0]
    whole = step * (edge.high - edge.low)
    if (
        sum(value.numel() for value in values) < thresholds.ENOUGH_VALUES
        or not 0 < thresholds.FINER_PART * (high - low) <= whole
    ):
        return None
    return ReportWarning(
        NOTE,
        "small-part",
        f"Output {number} is a part of a larger value ({program.named(taken)}) and shares its qparams: its range is "
        f"{low:.3g} to {high:.3g}, its scale {step:.3g} is for a range of {whole:.3g}.",
        "a separate layer for each part, or the parts scaled to similar sizes",
        output=number,
        **place_of(taken),
    )


def _taken(node: object) -> Node | None:
    """Return the operator that takes a part of a value with calibrated qparams, through operators that only move it."""
    found = None
    while isinstance(node, Node):
        if not program.is_compute(node):
            entry = None
        else:
            entry = known_import(node)
            whole = program.value_of(node.all_input_nodes[0]) if moves(node) else None  # a constant may have none
            if whole is not None and program.value_of(node).numel() < whole.numel():
                found = found or node
            elif entry is None or not entry.moves_only:
                learnt = entry is not None and rule_of(node, entry).output is not OutputQuantization.FIXED
                return found if learnt else None
        if not node.all_input_nodes:
            return found
        node = node.all_input_nodes[0]
    return None


# ---------------------------------------------------------------- kernels of the operators on the core


def of_host(module: GraphModule, verdicts: Sequence[Verdict]) -> tuple[ReportWarning, ...]:
    """Return a warning for each kind of operator that `compile` would refuse because ExecuTorch has no kernel for it.

    Operators with kernels of the same name pass; each other kind is lowered separately.
    """
    nodes = by_name(module)
    found: dict[str, ReportWarning] = {}
    seen: set[str] = set()
    for verdict in verdicts:
        node = nodes.get(verdict.node)
        if verdict.delegated or verdict.core or node is None or verdict.operator in seen:
            continue
        seen.add(verdict.operator)
        if has_some_kernel(verdict.operator.split(".")[0]):
            continue
        lacking = _lacking(node, module)
        if lacking:
            hint = hint_for(program.overload_name(node), "write it with operators of docs/support-table.md")
            what = f"The program cannot run: `{verdict.node}`{verdict.origin.at} is left to the host, and ExecuTorch "
            what += f"has no kernel for {lacking}."
            found.setdefault(lacking, ReportWarning(WARNING, NO_KERNEL, what, hint, **_place_of_verdict(verdict)))
    return tuple(found.values())


def _lacking(node: Node, module: GraphModule) -> str:
    """Return names of missing kernels in the decomposition of an operator, or ""."""
    with quiet():
        alone = _alone(node, module)
        if alone is None:
            return ""
        try:
            return ", ".join(without_kernel(written({"forward": MethodInput(*alone)}).callers["forward"]))
        except UnsupportedError:
            return str(program.overload_name(node))
        except Exception:  # it cannot be lowered without its program: unknown
            return ""


def _alone(node: Node, module: GraphModule) -> tuple[GraphModule, tuple[torch.Tensor, ...]] | None:
    """Return the operator as a program, with inputs of its shapes; None if a shape is unknown."""
    graph = Graph()
    inputs: list[torch.Tensor] = []
    copies: dict[Node, Any] = {}
    for operand in node.all_input_nodes:
        value = _value(operand, module)
        if not isinstance(value, torch.Tensor) or not all(isinstance(n, int) for n in value.shape):
            return None
        copies[operand] = graph.placeholder(f"operand_{len(inputs)}")
        inputs.append(torch.zeros(tuple(value.shape), dtype=value.dtype))
    result = graph.node_copy(node, lambda operand: copies[operand])
    graph.output((result,))
    return GraphModule(torch.nn.Module(), graph), tuple(inputs)


def _value(node: Node, module: GraphModule) -> object:
    """Return a tensor with the node's shape and dtype; None if unknown."""
    while "val" not in node.meta and "quantize_per" in str(node.target):  # of the shape of its operand
        (node, *_) = node.all_input_nodes
    if "val" in node.meta:
        return node.meta["val"]
    return operator.attrgetter(str(node.target))(module) if node.op == "get_attr" else None
