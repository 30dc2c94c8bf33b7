"""A program of several partitions: both entries give the same payloads."""

from __future__ import annotations

import pytest
import torch
from executorch.exir import to_edge_transform_and_lower
from torch import nn

import micronpu
from micronpu.neutron import (
    NeutronPartitioner,
    NeutronQuantizer,
    calibrate_and_quantize,
    generate_neutron_compile_spec,
)

SHAPE = (1, 8, 6)


class Between(nn.Module):
    """Values of several partitions and of the host meet again; ExecuTorch sorts the program anew between the cuts.

    Without pictures, which `micronpu.compile` alone passes from partition to partition channels last.
    """

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(6, 6) for _ in range(4))

    def forward(self, x: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        p = torch.relu(self.a(x))
        q = self.b(p)
        r = self.c(q)
        u, v = torch.topk(q, 6, dim=2)[0], torch.topk(r, 6, dim=2)[0]
        return self.d(v + z) + u * q, self.c(u) * r - v, p


@pytest.mark.sweep
def test_both_entries_give_the_same_payloads() -> None:
    torch.manual_seed(0)
    model, inputs = Between().eval(), (torch.randn(SHAPE), torch.randn(SHAPE))
    batches = [(torch.randn(SHAPE), torch.randn(SHAPE)) for _ in range(2)]
    quantized = calibrate_and_quantize(torch.export.export(model, inputs), batches, NeutronQuantizer())
    program = micronpu.compile(quantized, inputs, "imxrt700")
    partitioner = NeutronPartitioner(generate_neutron_compile_spec("imxrt700"))
    edge = to_edge_transform_and_lower(torch.export.export(quantized, inputs), partitioner=[partitioner])
    exported = edge.exported_program()
    modules = [getattr(exported.graph_module, str(n.target), None) for n in exported.graph.nodes if n.op == "get_attr"]
    theirs = [m.processed_bytes for m in modules if hasattr(m, "processed_bytes")]
    assert len(program.partitions) == 2
    assert sorted(p.payload for p in program.partitions) == sorted(theirs)
