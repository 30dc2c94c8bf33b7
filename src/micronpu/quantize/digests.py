"""Digests of a compilation's inputs: the exported model part by part, and the calibration data sample by sample."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule

from micronpu.frontend.constants import read
from micronpu.frontend.exported import Exported
from micronpu.quantize.data import Row
from micronpu.quantize.thresholds import DIGEST_DIGITS, MOST_DIGESTS


@dataclass(frozen=True)
class Digests:
    """Digests of the parts of the model and of the data, by name; see `micronpu.report.manifest.Basis`."""

    model: Mapping[str, str] = field(default_factory=dict)
    data: Mapping[str, str] = field(default_factory=dict)


def of_model(given: Exported) -> dict[str, str]:
    """Return digests of the graph, of the example inputs, and of each tensor that the graph reads, by its path.

    They do not depend on the machine: neither the place of source files nor the layout of tensors matters.
    """
    lines: list[str] = []
    found = {"graph": "", "inputs": of_tensors(given.examples)}
    found |= {name: of_tensors([tensor]) for name, tensor in _tensors(given.module, lines)}
    for state in given.states.values:
        found[f"state {state.name}"] = of_tensors([state.initial])
    return found | {"graph": _digest("\n".join(lines).encode())}


def of_recording(calls: Sequence[Row]) -> str:
    """Return the digest of one recording's calls, independent of its position."""
    return of_tensors([tensor for row in calls for tensor in row])


def of_rows(sequences: Sequence[Sequence[Row]]) -> dict[str, str]:
    """Return digests of the samples in order, numbered from 0, and of the starts of sequences."""
    rows = [row for sequence in sequences for row in sequence]
    size = -(-len(rows) // MOST_DIGESTS)
    found = {}
    for start in range(0, len(rows), size):
        name = f"row {start}" if size == 1 else f"rows {start} to {min(start + size, len(rows)) - 1}"
        found[name] = of_tensors([tensor for row in rows[start : start + size] for tensor in row])
    if any(len(sequence) > 1 for sequence in sequences):
        found["sequences"] = _digest(repr([len(sequence) for sequence in sequences]).encode())
    return found


def _tensors(module: GraphModule, lines: list[str], path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors that a graph and its subgraphs read, each once; add a line for each node."""
    seen: set[str] = set()
    for node in module.graph.nodes:
        lines.append(repr((node.op, node.name, str(node.target), node.args, node.kwargs)))
        if node.op != "get_attr" or str(node.target) in seen:
            continue
        seen.add(str(node.target))
        value: Any = read(module, node)
        if isinstance(value, GraphModule):
            yield from _tensors(value, lines, f"{path}{node.target}.")
        elif isinstance(value, torch.Tensor):
            yield f"{path}{node.target}", value


def of_tensors(tensors: Iterable[torch.Tensor]) -> str:
    """Return one digest of the dtypes, shapes and values of tensors."""
    digest = hashlib.sha256()
    for tensor in tensors:
        own = tensor.detach()
        digest.update(f"{own.dtype}{list(own.shape)}".encode())
        digest.update(own.contiguous().reshape(-1).as_strided((own.numel(),), (1,)).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:DIGEST_DIGITS]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:DIGEST_DIGITS]
