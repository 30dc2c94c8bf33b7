"""Qparams of an average or a clamp: those of its operand, as it is computed, unless their scale is too large."""

from __future__ import annotations

from typing import Any

import torch

from micronpu.quantize.observing import Observer, RangeObserver
from micronpu.quantize.thresholds import FINER_RESULT


class FinerObserver(RangeObserver):
    """Chooses between the range of the values and the operand's qparams, whose observer sees the results, too.

    Args:
        times: required ratio of the operand's scale to the own scale.
        room: range of separate qparams as a multiple of the observed range: averages of other data may exceed it, and
            clipping costs more than some precision.
        operand_qparams: scale and zero point that the operand would have if its own were not only for whole numbers.
    """

    operands: tuple[Any, ...]

    def __init__(
        self,
        *arguments: Any,
        times: float,
        room: float,
        operand_qparams: tuple[float, int] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self.times, self.room = times, room
        self.operand_qparams = operand_qparams
        self.operands = ()  # in a tuple they are no submodules

    def observe_operand(self, observer: Any) -> None:
        """Add an observer of the operand; several results that share qparams have several."""
        if observer is not None and observer is not self and observer not in self.operands:
            self.operands = (*self.operands, observer)

    def learners(self) -> tuple[RangeObserver, ...]:
        return (*self.operands, self) if len(self.operands) == 1 else (self,)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(self.operands) == 1:
            self.operands[0](x)
        return super().forward(x)

    def _ends(self) -> tuple[torch.Tensor, torch.Tensor]:
        low, high = super()._ends()
        return low * self.room, high * self.room

    def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        own = super().calculate_qparams()
        if self.operand_qparams is not None:
            shared = torch.tensor([self.operand_qparams[0]]), torch.tensor([self.operand_qparams[1]])
        elif len(self.operands) == 1:
            shared = self.operands[0].calculate_qparams()
        else:
            return own
        seen = float(self.min_val) < 0.0 or float(self.max_val) > 0.0
        # Observed values show how small the results are; separate qparams also need a margin.
        low, high = self.found()
        steps = float(high.clamp(min=0.0) - low.clamp(max=0.0)) / (self.quant_max - self.quant_min)
        is_worth = self.times * steps < float(shared[0]) and FINER_RESULT * float(own[0]) <= float(shared[0])
        return own if seen and is_worth else shared


OBSERVER = Observer("finer", FinerObserver, for_users=False)
