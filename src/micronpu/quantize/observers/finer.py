"""The grid of an average or a clamp: that of its operand, on which it is computed, unless that leaves it few steps."""

from __future__ import annotations

from typing import Any

import torch

from micronpu.quantize.observing import Observer, RangeObserver

_LEAST = 2.0
"""How much finer it has to be at least, which is what operators ask for that have another form then."""


class FinerObserver(RangeObserver):
    """The extremes of what was seen, or the grid of the operand, whose observer sees the results, too.

    Args:
        times: how much finer own steps have to be.
        room: how much farther than what was seen a grid of its own reaches: averages of other data may, and what is
            clipped costs more than a bit of many.
        operand_grid: scale and zero point that the operand would have if its own had not whole numbers only.
    """

    operands: tuple[Any, ...]

    def __init__(
        self, *arguments: Any, times: float, room: float, operand_grid: tuple[float, int] | None = None, **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self.times, self.room = times, room
        self.operand_grid = operand_grid
        self.operands = ()  # in a tuple they are no parts of this module

    def observe_operand(self, observer: Any) -> None:
        """Tells what its values are made of; on a grid of several results there may be several."""
        if observer is not None and observer is not self and observer not in self.operands:
            self.operands = (*self.operands, observer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(self.operands) == 1:
            self.operands[0](x)
        return super().forward(x)

    def _ends(self) -> tuple[torch.Tensor, torch.Tensor]:
        low, high = super()._ends()
        return low * self.room, high * self.room

    def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        own = super().calculate_qparams()
        if self.operand_grid is not None:
            shared = torch.tensor([self.operand_grid[0]]), torch.tensor([self.operand_grid[1]])
        elif len(self.operands) == 1:
            shared = self.operands[0].calculate_qparams()
        else:
            return own
        seen = float(self.min_val) < 0.0 or float(self.max_val) > 0.0
        # What was seen tells how small the results are; how far a grid of their own has to reach is another question.
        low, high = self.found()
        steps = float(high.clamp(min=0.0) - low.clamp(max=0.0)) / (self.quant_max - self.quant_min)
        is_worth = self.times * steps < float(shared[0]) and _LEAST * float(own[0]) <= float(shared[0])
        return own if seen and is_worth else shared


OBSERVER = Observer("finer", FinerObserver, for_users=False)
