"""View of an inspection in the terminal."""

from __future__ import annotations

from collections import Counter

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from micronpu.cli.inspection import Inspection
from micronpu.report.inside import InspectedDelegate, Section, Tensor


def inspection_view(inspection: Inspection) -> RenderableType:
    """Return sizes, inputs and outputs, and operators on the core of each method, then each delegate."""
    segments = f", {inspection.segment_bytes:,} of them in segments" if inspection.segment_bytes else ""
    parts: list[RenderableType] = [Text(f"{inspection.name}: {inspection.bytes:,} bytes{segments}", style="bold")]
    for name, tensors in inspection.methods.items():
        parts += [Text(f"\nmethod {name}", style="bold"), _tensors(tensors)]
        counts = Counter(inspection.operators[name])
        listed = ", ".join(f"{n} x {o}" if n > 1 else o for o, n in counts.items()) or "none"
        parts.append(Text(f"operators on the host: {listed}"))
        if inspection.states[name]:
            parts += [
                Text("states, from call to call, counted in the planned memories"),
                _tensors(inspection.states[name]),
            ]
        pools = inspection.pools[name]
        if pools is not None:
            planned = " + ".join(f"{size:,}" for size in pools.planned) or "0"
            parts.append(
                Text(
                    f"pools on a 32-bit core: planned {planned}, method allocator {pools.method:,}, "
                    f"temporary allocator {pools.temporary:,} bytes"
                )
            )
    for number, delegate in enumerate(inspection.delegates):
        parts += _delegate(number, delegate)
    if inspection.named_data:
        parts += [Text("\nnamed data", style="bold"), _sections(inspection.named_data)]
    return Group(*parts)


def _delegate(number: int, delegate: InspectedDelegate) -> list[RenderableType]:
    title = Text(f"\ndelegate {number}: {delegate.backend}, {delegate.bytes:,} bytes", style="bold")
    parts: list[RenderableType] = [title]
    if delegate.kind:
        parts.append(Text(delegate.kind))
    if delegate.objection:
        parts.append(Text(delegate.objection, style="red"))
    if delegate.sections:
        parts.append(_sections(delegate.sections))
    if delegate.tensors:
        parts.append(_tensors(delegate.tensors))
    return parts


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column == "bytes" else "left")
    return table


def _sections(sections: tuple[Section, ...]) -> Table:
    table = _table("block", "bytes", "")
    for section in sections:
        table.add_row(Text(section.name), f"{section.bytes:,}", Text(section.detail))
    return table


def _tensors(tensors: tuple[Tensor, ...]) -> Table:
    table = _table("tensor", "shape", "element", "place")
    for tensor in tensors:
        table.add_row(tensor.name, " x ".join(map(str, tensor.shape)), tensor.element, tensor.place)
    return table
