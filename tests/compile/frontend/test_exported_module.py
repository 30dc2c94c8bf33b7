"""The result of `ExportedProgram.module()` as the model: its parts say that they are in training mode."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import micronpu

X = (torch.randn(1, 3, 6, 6, generator=torch.Generator().manual_seed(0)),)
ROWS = [(torch.randn(1, 3, 6, 6, generator=torch.Generator().manual_seed(seed)),) for seed in range(1, 13)]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.drop(torch.relu(self.norm(self.convolution(x))).mean((2, 3))))


def test_the_module_of_an_exported_program_is_a_model():
    module = torch.export.export(Net().eval(), X).module()
    expected = micronpu.compile(Net().eval(), X, "imxrt700", calibration=ROWS)
    assert micronpu.compile(module, X, "imxrt700", calibration=ROWS).buffer == expected.buffer
    assert micronpu.check(module, X, "imxrt700").report.delegated == expected.report.delegated
    assert len(micronpu.blame(module, ROWS, "imxrt700").layers) == len(
        micronpu.blame(Net().eval(), ROWS, "imxrt700").layers
    )


@pytest.mark.parametrize("part", ["norm", "drop"])
@pytest.mark.parametrize("give", [lambda program: program, lambda program: program.module()])
def test_what_was_exported_in_training_mode_is_refused(part, give):
    model = Net().eval()
    model.get_submodule(part).train()
    program = torch.export.export(model, X)
    with pytest.raises(micronpu.ModelError, match=r"is in training mode.*model\.eval\(\) before torch\.export"):
        micronpu.compile(give(program), X, "imxrt700", calibration=ROWS)


def test_modules_that_a_traced_graph_calls_count():
    traced = torch.fx.symbolic_trace(Net().eval())
    traced.get_submodule("drop").train()
    with pytest.raises(micronpu.ModelError, match=r"`drop` .Dropout. of the model"):
        micronpu.check(traced, X, "imxrt700")
