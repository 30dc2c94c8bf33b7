"""A pass of a user's own on the way of a program."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.unit.passes.pass_graphs import MergeEqualOperands
from torch import nn

import micronpu
from micronpu.base.errors import PassError
from micronpu.ir.graph import Graph


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(4, 8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x)
        return torch.maximum(x, x)


X = (torch.randn(1, 4, 6, 6, generator=torch.Generator().manual_seed(0)),)
OWN = micronpu.Pipeline().before("merge_reshapes", MergeEqualOperands())


def compiled(target: str, **given):
    return micronpu.compile(Twice().eval(), X, target, calibration=[X], **given)


def operators(program: micronpu.CompiledProgram) -> list[str]:
    rows = (*program.report.operations, *program.report.core_operations)
    return [row.name for row in rows]


@pytest.mark.parametrize("target", ["imxrt700-neutron", "ethos-u55-128", "cortex-m33"])
def test_a_pass_of_ones_own_changes_the_program_and_not_its_results(target):
    plain, own = compiled(target), compiled(target, transforms=OWN)
    assert "maximum" in " ".join(operators(plain)) and "maximum" not in " ".join(operators(own))
    assert len(operators(own)) < len(operators(plain))
    np.testing.assert_array_equal(own.run(*X), plain.run(*X))
    again = compiled(target, transforms=micronpu.Transforms(passes=micronpu.Pipeline()))
    assert again.buffer == plain.buffer


class Spoils(micronpu.Pass):
    """Leaves a graph whose first node reads what is computed later."""

    name = "spoils"

    def run(self, graph: Graph) -> bool:
        graph.nodes.reverse()
        return True


def test_a_pass_that_breaks_the_graph_is_named():
    spoiled = micronpu.Pipeline().before("merge_reshapes", Spoils())
    with pytest.raises(PassError, match=r"The pass `spoils` breaks the graph: `%.*` reads .* before it is computed"):
        compiled("imxrt700-neutron", transforms=spoiled)


def test_every_graph_goes_to_a_folder_by_one_switch(tmp_path):
    options = micronpu.NeutronOptions("imxrt700", intermediates_dir=str(tmp_path))
    program = compiled("imxrt700-neutron", options=options, transforms=OWN)
    (part,) = tmp_path.iterdir()
    steps = [path.stem[4:] for path in sorted((part / "passes").iterdir())]
    assert "merge_equal_operands" in steps and "sink_transposes" in steps
    assert program.buffer == compiled("imxrt700-neutron", transforms=OWN).buffer
