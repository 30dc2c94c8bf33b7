"""Verdicts of the report: where an operator runs, whose results it reads, and why it stays in float."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch.fx import Node as FxNode

from micronpu.base.errors import UnsupportedError
from micronpu.frontend.importer import import_of
from micronpu.frontend.program import (
    ProgramView,
    origin_of,
    overload_name,
    static_shape,
    value_of,
)
from micronpu.ir.lowering import LOWERINGS, Decomposition
from micronpu.partition.policy import IMPORTED, IMPORTED_SENTENCE, reason_at
from micronpu.report.verdict import Reason, Verdict


def reads_of(view: ProgramView, verdicts: Collection[FxNode]) -> dict[FxNode, tuple[str, ...]]:
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
    detail, hint = _on_integers(node), ""
    if not detail:
        detail, hint = _why_float(node)
    return verdict_on(node, None, (reason_at(node, IMPORTED, IMPORTED_SENTENCE, detail, hint),))


def _on_integers(node: FxNode) -> str:
    """Return the detail for integers that are computed from integers; "" for any other operator."""
    types = [getattr(value_of(n), "dtype", None) for n in (node, *node.all_input_nodes)]
    if types[0] is torch.bool or any(t is None or t.is_floating_point or t.is_complex for t in types):
        return ""
    return (
        f"it computes {str(types[0]).removeprefix('torch.')} from integers, as positions and indices are: the host "
        "does that in no time, and int8 cannot represent them"
    )


def _why_float(node: FxNode) -> tuple[str, str]:
    """Return why an operator is not quantized, and what to try."""
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
            decision = next(
                (w for w in LOWERINGS.get(entry.overload, ()) if isinstance(w, Decomposition) and w.decides), None
            )
            if decision is not None:
                hint = f"a call of the form that is written as others: {decision.sentence.rstrip('.')}"
    except UnsupportedError as error:
        detail, hint = error.what, error.hint
    return detail, hint


def _hint_without_table(overload: str) -> str:
    """Return the hint for a chip without tables on which the overload's decomposition, if any, did not fit."""
    decomposed = next((w for w in LOWERINGS[overload] if isinstance(w, Decomposition)), None)
    if decomposed is not None:
        return f"a call of the form that is written as others: {decomposed.sentence.rstrip('.')}"
    return "a target with tables, see docs/support-table.md, or leave it to the core as it is"


def verdict_on(node: FxNode, partition: int | None, reasons: tuple[Reason, ...] = (), macs: int = 0) -> Verdict:
    name = overload_name(node) or str(node.target)
    return Verdict(name, origin_of(node), partition, reasons, macs, static_shape(node) or ())
