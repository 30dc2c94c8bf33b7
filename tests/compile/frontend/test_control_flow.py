"""Control flow of one level passes, and what no runtime has is a sentence before anything is computed."""

from __future__ import annotations

import pytest
import torch
from executorch.exir import to_edge_transform_and_lower
from torch import nn

import micronpu
from micronpu.base.errors import ModelError, OptionError
from micronpu.ethosu import EthosUOptions, EthosUPartitioner, EthosUQuantizer
from micronpu.frontend.checks import check_control_flow
from micronpu.frontend.export import check_static
from micronpu.frontend.exported import exported


class Branches(nn.Module):
    def __init__(self, levels: int) -> None:
        super().__init__()
        self.levels = levels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def branch(level: int, x: torch.Tensor) -> torch.Tensor:
            if not level:
                return x + 1
            return torch.cond(x.sum() > level, lambda x: branch(level - 1, x), lambda x: x * 2, (x,))

        return branch(self.levels, x)


class Loop(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        start = (torch.zeros((), dtype=torch.int64), x)
        return torch._higher_order_ops.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), start)[1]


def module_of(model: nn.Module) -> torch.fx.GraphModule:
    return torch.export.export(model.eval(), (torch.randn(2, 3),)).module()


def test_one_level_passes():
    check_control_flow(module_of(Branches(0)))
    check_control_flow(module_of(Branches(1)))


@pytest.mark.parametrize("levels", [2, 3])
def test_control_flow_inside_of_control_flow(levels):
    with pytest.raises(ModelError, match=r"^The model has `cond` inside of `cond` \(`cond\w*`\); .* Try: "):
        check_static(module_of(Branches(levels)))


def test_a_loop_that_the_runtime_does_not_have():
    with pytest.raises(ModelError, match=r"^The model has the control flow `while_loop` .* Try: "):
        check_static(module_of(Loop()))


class Either(nn.Module):
    """Two convolutions, of which the picture's mean chooses one; the second result is the same in both branches."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.dark, self.light = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        def light(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.relu(self.light(x)).contiguous(), x * 2

        def dark(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.tanh(self.dark(x)).contiguous(), x + 1

        return torch.cond(x.mean() > 0, light, dark, (x,))


SHADES = [torch.randn(1, 3, 6, 6, generator=torch.Generator().manual_seed(i)) + (-1) ** i for i in range(4)]


def test_both_branches_mean_what_the_chosen_one_means():
    model = Either().eval()
    given = exported(model, SHADES[0])
    assert not [n for n in given.module.graph.nodes if "cond" in str(n.target)]
    with torch.no_grad():
        for x in SHADES:
            for own, expected in zip(given.module(x), model(x), strict=True):
                torch.testing.assert_close(own, expected, rtol=0, atol=0)


@pytest.mark.parametrize("target", ["ethos-u55-128", "imxrt700"])
def test_branches_run_on_the_npu(target):
    model = Either().eval()
    program = micronpu.compile(model, SHADES[0], target, calibration=SHADES)
    on_npu = {v.operator for v in program.report.verdicts if v.delegated}
    assert {"conv2d.default", "relu.default", "tanh.default"} <= on_npu
    assert any(note.startswith("`cond`: both branches are computed") for note in program.report.notes)
    with torch.no_grad():
        for x in SHADES:
            for own, expected in zip(program.run(x), model(x), strict=True):
                torch.testing.assert_close(own, expected, rtol=0, atol=0.02 * float(expected.abs().max()) + 0.02)


def test_branches_in_executorchs_flow():
    spec = EthosUOptions("ethos-u55-128")
    module = torch.export.export(Either().eval(), (SHADES[0],), strict=True).module(check_guards=False)
    quantized = EthosUQuantizer(spec).quantize_with_submodules(module, [(x,) for x in SHADES])
    partitioner = EthosUPartitioner(spec)
    edge = to_edge_transform_and_lower(torch.export.export(quantized, (SHADES[0],)), partitioner=[partitioner])
    assert "executorch_call_delegate" in str(edge.exported_program().graph)
    assert {"conv2d.default", "tanh.default"} <= {v.operator for v in partitioner.report.verdicts if v.delegated}
    for wrong in ({"calibration_samples": []}, {"calibration_samples": [SHADES[0]]}, {"is_qat": True}, {"model": 3}):
        with pytest.raises(OptionError):
            EthosUQuantizer(spec).quantize_with_submodules(
                **{"model": module, "calibration_samples": [(SHADES[0],)]} | wrong
            )
