"""The ETRecord of a program, with which `executorch.devtools.Inspector` maps a recorded run to the user's code.

Its reference is the quantized program in float, one node per operator with the user's source line. Debug handles map
every NPU operation to the nodes that it computes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch.export import ExportedProgram

from micronpu.base.errors import ModelError
from micronpu.base.files import check_writable, write_file
from micronpu.base.leaving import scratch_folder
from micronpu.base.quiet import quiet
from micronpu.frontend.graphs import GraphModule, by_name, calls
from micronpu.frontend.program import node_sources
from micronpu.partition.device import CompiledPartition
from micronpu.program.plan import Plan, read_plan
from micronpu.upstream.executorch import debug_record
from micronpu.upstream.session import exclusive

HANDLE = "debug_handle"
"""Key of a node's metadata in ExecuTorch's tools."""


def number_nodes(module: GraphModule, first: int) -> None:
    """Give every operator of a quantized module a debug handle, in execution order from ``first``."""
    for number, node in enumerate(calls(module), first):
        node.meta[HANDLE] = number


@exclusive()
def write_etrecord(
    path: str | os.PathLike[str],
    module: GraphModule,
    inputs: tuple[torch.Tensor, ...],
    program: bytes,
    partitions: Sequence[CompiledPartition],
    kernels: Mapping[int, tuple[int, ...]] | None = None,
    method: str = "",
) -> Path:
    """Write the record."""
    check_writable(path)
    if partitions and not any(handles for part in partitions for handles in part.debug_handles.values()):
        what = "The program was compiled without debug handles, so that an ETRecord could name no line of the model."
        raise ModelError(what, hint="compile the model again")
    plan, _ = read_plan(program, method=method)
    with quiet():
        reference = _reference(module, inputs)
        handles, delegates, outputs = _maps(plan, partitions)
        for number, own in (kernels or {}).items():
            handles[number], outputs[number] = list(own), 1
        record = debug_record(reference, handles=handles, delegates=delegates, outputs=outputs, inputs=list(inputs))
        with scratch_folder("micronpu-") as folder:
            made = folder / "etrecord.bin"
            record.save(made)
            return write_file(path, made.read_bytes())


def _reference(module: GraphModule, row: tuple[torch.Tensor, ...]) -> ExportedProgram:
    """Return the module as an exported program whose nodes have the module's debug handles."""
    handles = {name: n.meta[HANDLE] for name, n in by_name(module).items() if HANDLE in n.meta}
    with torch.no_grad():
        exported = torch.export.export(module, row)
    for node in exported.graph.nodes:
        node.meta.pop(HANDLE, None)
        known = (handles[source.name] for source in node_sources(node) if source.name in handles)
        if (handle := next(known, None)) is not None:
            node.meta[HANDLE] = handle
    return exported


def _maps(
    plan: Plan, partitions: Sequence[CompiledPartition]
) -> tuple[dict[int, object], dict[int, object], dict[int, int]]:
    """Return debug handles, identifiers of NPU operations and numbers of outputs, by the number of the instruction."""
    by_payload = {part.payload: part for part in partitions}
    handles: dict[int, object] = {}
    delegates: dict[int, object] = {}
    outputs: dict[int, int] = {}
    for number, call in enumerate(plan.calls):
        part = by_payload.get(plan.delegates[call.delegate].payload) if call.kind == "DelegateCall" else None
        if part is None:
            continue
        own = {i: list(h) for i, h in part.debug_handles.items()}
        handles[number] = sorted({h for group in own.values() for h in group})
        delegates[number] = {"name": plan.delegates[call.delegate].backend, "delegate_map": own}
        outputs[number] = len(part.graph.outputs)
    return handles, delegates, outputs
