"""Host parts as programs by ExecuTorch's own lowering, which ours are compared with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from executorch.exir import to_edge
from executorch.exir.passes import MemoryPlanningPass
from executorch.exir.tensor import TensorSpec
from torch.fx import GraphModule

from micronpu.partition.lower import backend_config, plan, with_delegates
from micronpu.program.pte import DIGEST_KEY, EMPTY_DIGEST
from micronpu.targets.registry import BACKENDS
from micronpu.upstream.executorch import edge_config


def by_executorch(
    parts: Mapping[str, tuple[GraphModule, tuple[torch.Tensor, ...]]],
    named: Mapping[str, bytes] | None = None,
    stock: list[int] | None = None,
) -> bytes:
    """The `.pte` of host parts by method, with example inputs; changes these.

    Args:
        named: what the program carries beside what partitions bring along.
        stock: gets the bytes of planned memory that ExecuTorch's own algorithm would take, by method.
    """
    import executorch.kernels.quantized  # noqa: F401  (out variants of quantize and dequantize)

    programs = {name: torch.export.export(with_delegates(module), rows) for name, (module, rows) in parts.items()}
    edge = to_edge(programs, compile_config=edge_config())
    for backend in BACKENDS.values():
        backend.plan_scratch(edge)
    for key, data in {**(named or {}), DIGEST_KEY: EMPTY_DIGEST}.items():
        edge._named_data_store.add_named_data(key, data)

    def planned(alignment: int, specs: Iterable[TensorSpec], *more: Any) -> list[int]:
        specs = list(specs)
        if stock is not None:
            stock.append(sum(MemoryPlanningPass().memory_planning_algo(alignment, specs, *more)))
        return plan(alignment, specs, *more)

    planning = MemoryPlanningPass(memory_planning_algo=planned, share_mutable_buffers=len(parts) > 1)
    return bytes(edge.to_executorch(config=replace(backend_config(), memory_planning_pass=planning)).buffer)
