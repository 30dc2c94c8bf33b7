"""What a program would take with its weights in another memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ResidentPrice:
    """The NPU's programs with their weights in SRAM from the start on, beside the same with weights in flash.

    Attributes:
        time: of the NPU, as a part of its time now; an estimate.
        sram_bytes: of SRAM that they take more, at the most.
    """

    time: float
    sram_bytes: int

    def __str__(self) -> str:
        """``0.58 of the NPU's time for 84,000 bytes of SRAM more``."""
        return f"{self.time:.2f} of the NPU's time for {self.sram_bytes:,} bytes of SRAM more"
