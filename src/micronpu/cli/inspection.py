"""Contents of a finished `.pte`: inputs and outputs, host operators, and each delegate's payload.

Reads only the file: no torch, no ExecuTorch.
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from micronpu.base.errors import ModelError, PayloadError
from micronpu.base.parsing import JsonObject
from micronpu.base.texts import affine
from micronpu.container.payload import content_of
from micronpu.program.io import StoredState, file_facts_of, io_of, states_of
from micronpu.program.plan import read_plan
from micronpu.program.pte import MethodSummary, TensorValue, read_pte
from micronpu.report.inside import InspectedDelegate, Section, Tensor
from micronpu.report.plain import plain_table
from micronpu.targets.board import Pools, pools_of
from micronpu.targets.registry import BACKENDS


@dataclass(frozen=True)
class Inspection:
    """A program.

    Attributes:
        name: name in messages.
        bytes: size of the file.
        program_bytes, segment_bytes: sizes of the flatbuffer and of the segments behind it.
        methods: tensors of each method.
        operators: operators on the core, by method.
        calls: instructions of each method in order: the kernel, or the delegate; empty if it cannot be read.
        delegates: in program order.
        named_data: data that delegates look up by key.
        pools: memory that each method needs on a 32-bit core; None if a payload cannot be read.
        states: values of each method that persist in planned memory from call to call.
    """

    name: str
    bytes: int
    program_bytes: int
    segment_bytes: int
    methods: dict[str, tuple[Tensor, ...]]
    operators: dict[str, tuple[str, ...]]
    calls: dict[str, tuple[str, ...]]
    delegates: tuple[InspectedDelegate, ...]
    named_data: tuple[Section, ...]
    pools: dict[str, Pools | None]
    states: dict[str, tuple[Tensor, ...]]

    def to_dict(self) -> JsonObject:
        return asdict(self)


def inspect_pte(data: bytes, name: str = "The program") -> Inspection:
    """Read the contents of a program."""
    summary = read_pte(data, name=name)
    planned = {method: _planned(data, method) for method in summary.methods}
    return Inspection(
        name=name,
        bytes=len(data),
        program_bytes=summary.program_size,
        segment_bytes=summary.segment_size,
        methods={n: _io(data, n, m) for n, m in summary.methods.items()},
        operators={n: m.operators for n, m in summary.methods.items()},
        calls={name: own[2] for name, own in planned.items()},
        delegates=tuple(_delegate(backend_id, blob) for backend_id, blob in summary.payloads),
        named_data=tuple(Section(key, len(blob), content_of(blob)) for key, blob in summary.named_data.items()),
        pools={name: own[0] for name, own in planned.items()},
        states={name: own[1] for name, own in planned.items()},
    )


def _planned(data: bytes, method: str) -> tuple[Pools | None, tuple[Tensor, ...], tuple[str, ...]]:
    """Return the pools, the states and the calls of a method; none of them if a payload cannot be read."""
    pools, states, calls = None, tuple[StoredState, ...](), tuple[str, ...]()
    with contextlib.suppress(PayloadError):
        plan, summary = read_plan(data, method=method)
        states = states_of(plan, summary.named_data)
        calls = tuple(
            c.operator or (f"delegate {c.delegate}" if c.kind == "DelegateCall" else c.kind) for c in plan.calls
        )
        pools = pools_of(plan)
    qparams = ["" if s.scale is None else f", {affine(s.scale, s.zero_point)}" for s in states]
    sizes = (f"{s.bytes:,} bytes{qparams[i]}" for i, s in enumerate(states))
    return pools, tuple(Tensor(s.name, s.shape, s.dtype, size) for s, size in zip(states, sizes, strict=True)), calls


def _io(data: bytes, name: str, method: MethodSummary) -> tuple[Tensor, ...]:
    try:
        plan, summary = read_plan(data, method=name)
        facts = file_facts_of(summary.named_data, plan.name)
        both = (io for side in io_of(plan, summary.named_data, None) for io in side)
        recorded = {io.name: (facts.name(io.name), io.meaning) for io in both}
    except (PayloadError, ModelError):  # such as one of varying shape
        recorded = dict[str, tuple[str, str]]()

    def tensor(kind: str, number: int, value: TensorValue | None) -> Tensor:
        if value is None:
            return Tensor(f"{kind} {number}", (), "no tensor")
        plain = tuple(range(len(value.shape)))
        order = "" if value.dim_order == plain else f"axes in memory {value.dim_order}"
        place = ", ".join(filter(None, (*recorded.get(f"{kind}_{number}", ()), order)))
        return Tensor(f"{kind} {number}", value.shape, value.dtype, place)

    return (
        *(tensor("input", i, v) for i, v in enumerate(method.inputs)),
        *(tensor("output", i, v) for i, v in enumerate(method.outputs)),
    )


def _delegate(backend_id: str, blob: bytes) -> InspectedDelegate:
    # A core has no delegate: the name of its backend is "", which a damaged program may contain as well.
    backend = next((f for f in BACKENDS.values() if f.backend_id == backend_id), None) if backend_id else None
    if backend is None:
        return InspectedDelegate(backend_id, len(blob), kind="of a backend that micronpu does not know")
    try:
        return backend.inspect(blob)
    except PayloadError as error:
        return InspectedDelegate(backend_id, len(blob), objection=str(error))


def inspection_view(inspection: Inspection) -> RenderableType:
    """Return sizes, inputs and outputs, and operators on the core of each method, then each delegate."""
    segments = f", {inspection.segment_bytes:,} of them in segments" if inspection.segment_bytes else ""
    parts: list[RenderableType] = [Text(f"{inspection.name}: {inspection.bytes:,} bytes{segments}", style="bold")]
    for name, tensors in inspection.methods.items():
        parts += [Text(f"\nmethod {name}", style="bold"), _tensors(tensors)]
        operators = ", ".join(inspection.operators[name]) or "none"
        calls = ", ".join(f"{number} {call}" for number, call in enumerate(inspection.calls[name]))
        parts.append(Text(f"instructions: {calls}" if calls else f"operators on the core: {operators}"))
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
        parts += _delegate_view(number, delegate)
    if inspection.named_data:
        parts += [Text("\nnamed data", style="bold"), _sections(inspection.named_data)]
    return Group(*parts)


def _delegate_view(number: int, delegate: InspectedDelegate) -> list[RenderableType]:
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


def _sections(sections: tuple[Section, ...]) -> Table:
    table = plain_table("block", "bytes", "", numbers=("bytes",))
    for section in sections:
        table.add_row(Text(section.name), f"{section.bytes:,}", Text(section.detail))
    return table


def _tensors(tensors: tuple[Tensor, ...]) -> Table:
    table = plain_table("tensor", "shape", "element", "place")
    for tensor in tensors:
        table.add_row(tensor.name, " x ".join(map(str, tensor.shape)), tensor.element, tensor.place)
    return table
