"""The grid of an average: that of its operand, which chips average on, unless that leaves it few steps."""

from __future__ import annotations

from typing import Any

import torch

from micronpu.quantize.observing import Observer, RangeObserver

_FEW = 8
"""An average whose range is a smaller part of its operand's has less than 32 steps on its grid."""


class AverageObserver(RangeObserver):
    """The extremes of what was seen, or the grid of the operand, whose observer sees the averages, too.

    Args:
        operand_grid: scale and zero point that the operand would have if its own had not whole numbers only.
    """

    operands: tuple[Any, ...]

    def __init__(self, *arguments: Any, operand_grid: tuple[float, int] | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.operand_grid = operand_grid
        self.operands = ()  # in a tuple they are no parts of this module

    def observe_operand(self, observer: Any) -> None:
        """Tells whose average it is; on a grid of several averages there may be several."""
        if observer is not None and observer is not self and observer not in self.operands:
            self.operands = (*self.operands, observer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(self.operands) == 1:
            self.operands[0](x)
        return super().forward(x)

    def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        own = super().calculate_qparams()
        if self.operand_grid is not None:
            shared = torch.tensor([self.operand_grid[0]]), torch.tensor([self.operand_grid[1]])
        elif len(self.operands) == 1:
            shared = self.operands[0].calculate_qparams()
        else:
            return own
        seen = float(self.min_val) < 0.0 or float(self.max_val) > 0.0
        return own if seen and _FEW * float(own[0]) < float(shared[0]) else shared


OBSERVER = Observer("averages", AverageObserver, for_users=False)
