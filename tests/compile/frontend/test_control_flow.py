"""Control flow of one level passes, and what no runtime has is a sentence before anything is computed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from micronpu.base.errors import ModelError
from micronpu.frontend.checks import check_control_flow
from micronpu.frontend.export import check_static


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
