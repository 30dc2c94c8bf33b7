"""Effect of weights in another memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ResidentPrice:
    """The NPU's programs with their weights in SRAM, compared with weights in flash.

    Attributes:
        time: of the NPU, as a fraction of its current time; an estimate.
        sram_bytes: additional bytes of SRAM for the blocks of the NPU; the host's part of the program moves there too.
    """

    time: float
    sram_bytes: int

    def __str__(self) -> str:
        """``0.58 of the NPU's time for 84,000 bytes of SRAM more``."""
        return f"{self.time:.2f} of the NPU's time for {self.sram_bytes:,} bytes of SRAM more"
