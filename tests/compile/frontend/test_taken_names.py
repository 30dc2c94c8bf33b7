"""Parts of a model that are called as parts of torch's own graph modules are: `graph`, `code`, `meta`."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import micronpu

KINDS = ("module", "parameter", "buffer", "constant", "state")
CASES = [*(("graph", kind) for kind in KINDS), ("code", "state"), ("code", "module"), ("meta", "module")]
CASES += [(name, "module") for name in ("recompile", "_graph", "range_constraints")]


class Named(nn.Module):
    """A layer, a parameter, buffers of both kinds and one that is written, under a name that is given."""

    def __init__(self, name: str, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.name, self.kind = name, kind
        weight = torch.randn(4, 4)
        if kind == "module":
            self.add_module(name, nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
        elif kind == "parameter":
            self.register_parameter(name, nn.Parameter(weight))
        elif kind == "state":
            self.register_buffer(name, torch.zeros(1, 4))
        else:
            self.register_buffer(name, weight, persistent=kind == "buffer")
        self.add_module(f"{name}_", nn.Linear(4, 4))  # the next name is in use as well
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        part = getattr(self, self.name)
        if self.kind == "state":
            part.copy_(0.5 * part + x)
            found = part * 2.0
        else:
            found = part(x) if self.kind == "module" else x @ part
        result: torch.Tensor = getattr(self, f"{self.name}_")(found)
        return result


def data() -> list[torch.Tensor]:
    return [torch.randn(1, 4, generator=torch.Generator().manual_seed(i)) for i in range(8)]


@pytest.mark.sweep
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_part_may_have_any_name(name: str, kind: str):
    x, *_ = rows = data()
    program = micronpu.compile(Named(name, kind), x, "imxrt700", calibration=rows)
    other = micronpu.compile(Named("plain", kind), x, "imxrt700", calibration=rows)
    for row in rows:
        assert torch.equal(program.run(row), other.run(row))
    assert program.report.accuracy == other.report.accuracy


def test_the_user_keeps_her_names_and_her_program():
    model = Named("graph", "module")
    exported = torch.export.export(model, (data()[0],))
    paths = list(exported.state_dict)
    program = micronpu.compile(
        exported, data()[0], "imxrt700", calibration=data(), quantization={"modules": {"graph.0": {"float": True}}}
    )
    assert [v.node for v in program.report.host], "the layer that is left in float by its own name"
    assert list(exported.state_dict) == paths
