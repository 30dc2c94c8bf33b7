"""Facts about a finished program for the report: inputs and outputs, tools, digests."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from micronpu.base.installed import VERSION, requirements
from micronpu.frontend.integers import IntegerIO
from micronpu.frontend.program import ProgramView, is_dequantize, is_quantize, value_of
from micronpu.ir.graph import Graph
from micronpu.partition.device import CompiledPartition, Device
from micronpu.report.delegation import DelegationReport
from micronpu.report.operations import IOTensor
from micronpu.report.texts import plural

ENERGY = "not published for this chip"
_NAME = re.compile(r"[\w.-]+")


def tool_versions() -> dict[str, str]:
    """Return versions of Python, micronpu and its installed dependencies."""
    found = {"python": platform.python_version(), "micronpu": VERSION}
    for text in requirements():
        name = _NAME.match(text)
        if name is None or "extra ==" in text:
            continue
        try:
            found[name[0]] = importlib.metadata.version(name[0])
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def digests(program: bytes, partitions: Sequence[CompiledPartition]) -> dict[str, str]:
    """Return SHA-256 of the program and of each payload."""
    blobs: Mapping[str, bytes | memoryview] = {
        "program": program,
        **{f"partition {i}": part.data for i, part in enumerate(partitions)},
    }
    return {name: hashlib.sha256(blob).hexdigest() for name, blob in blobs.items()}


def missing_figures(
    device: Device, parts: Sequence[CompiledPartition], graphs: Sequence[Graph], report: DelegationReport
) -> dict[str, str]:
    """Return figures that the report cannot give, with the reason, a clause each.

    Args:
        graphs: graphs of the core's int8 parts.
        report: of the partitioning.
    """
    missing = {}
    if parts and (why := device.no_latency()):
        missing["time of the NPU"] = why
    if graphs and device.core is not None and device.core.clock_mhz is None:
        known = (
            "a core without a chip has no clock"
            if device.chip is None
            else "the chip's file has no clock_mhz in [core]"
        )
        missing["time of the core"] = known
    if report.in_float:
        missing["time of the host"] = (
            f"{plural(len(report.in_float), 'operator')} in portable float kernels, of which there is no model"
        )
    return missing | {"energy": ENERGY}


def io_tensors(module: GraphModule, integer_io: IntegerIO | None) -> tuple[tuple[IOTensor, ...], tuple[IOTensor, ...]]:
    """Return inputs and outputs of a quantized module.

    Args:
        integer_io: meaning of its integer inputs and outputs, or None.
    """
    view = ProgramView(module)
    results: list[Node] = []
    torch.fx.map_arg(module.graph.output_node().args, results.append)
    known: tuple[Sequence[Any], Sequence[Any]] = (
        (integer_io.inputs, integer_io.outputs) if integer_io is not None else ((), ())
    )

    def tensors(nodes: Sequence[Node], meanings: Sequence[Any], prefix: str) -> tuple[IOTensor, ...]:
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
    """Return the qparams directly after an input, or directly before an output."""
    steps = [node] if is_dequantize(node) else [user for user in node.users if is_quantize(user)]
    edges = {view.edge(step) for step in steps}
    edge = edges.pop() if len(edges) == 1 else None
    if edge is None or len(edge.qparams.scale) != 1:
        return None, None
    return edge.qparams.scale[0], edge.qparams.zero_point[0]
