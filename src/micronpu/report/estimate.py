"""Estimates with their bands and sources."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Latency:
    """Estimated time of one call on a processor.

    Attributes:
        processor: "NPU", the title of the core, or the overhead of invocations of the NPU.
        cycles: of its clock.
        clock_mhz: the clock.
        low, high: factors of the time that contain the published measurements of other networks.
        source: source of the cycles, one clause.
    """

    ALSO: ClassVar[tuple[str, ...]] = ("milliseconds", "band")

    processor: str
    cycles: int
    clock_mhz: float
    low: float
    high: float
    source: str

    @property
    def milliseconds(self) -> float:
        """Return the estimate in milliseconds."""
        return self.cycles / self.clock_mhz / 1000

    @property
    def band(self) -> tuple[float, float]:
        """Return lower and upper end in milliseconds."""
        return self.low * self.milliseconds, self.high * self.milliseconds

    @property
    def digits(self) -> int:
        """Return the number of decimal places for two or three significant digits."""
        time = self.milliseconds
        return 0 if time >= 100 else 1 if time >= 10 else 2 if time >= 0.1 else 3 if time >= 0.01 else 4

    def __str__(self) -> str:
        """``NPU: about 6.3 ms (5.1 to 7.9), 948,100 cycles at 150 MHz, by ...``."""
        low, high = self.band
        digits = self.digits
        time = f"about {self.milliseconds:.{digits}f} ms ({low:.{digits}f} to {high:.{digits}f})"
        return f"{self.processor}: {time}, {self.cycles:,} cycles at {self.clock_mhz:g} MHz, by {self.source}."
